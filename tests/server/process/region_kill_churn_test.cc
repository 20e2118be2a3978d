// Processes that share memory with a server, as a process too, for 8 s, or NORMD_CHURN_SECONDS and
// until NORMD_CHURN_REQUESTS are answered: eight clients that come, verify each response and go, of
// which two a second are killed (SIGKILL), with requests inside. Every response is right, and in
// the end the server has no more memory, descriptors and mappings than after a third of the time.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/scrape/http_get.h"
#include "tests/server/process/normd_process.h"
#include "tests/support/temp_folder.h"
#include "tests/support/threads.h"

extern char** environ;

namespace normd::testing {
namespace {

using Seconds = std::chrono::duration<double>;

constexpr int kClients = 8;

double FromEnvironment(const char* name, double otherwise) {
  const char* const text = std::getenv(name);
  return text != nullptr ? std::atof(text) : otherwise;
}

// What must not grow.
struct Footprint {
  std::int64_t resident_kib = 0;
  std::int64_t descriptors = 0;
  std::int64_t mappings = 0;

  static Footprint Of(pid_t pid) {
    const std::string process = absl::StrCat("/proc/", pid);
    Footprint now;
    std::ifstream maps(process + "/maps");
    now.mappings = std::count(std::istreambuf_iterator<char>(maps), {}, '\n');
    now.descriptors = std::distance(std::filesystem::directory_iterator(process + "/fd"), {});
    std::ifstream statm(process + "/statm");
    std::int64_t pages = 0;
    statm >> pages >> pages;
    now.resident_kib = pages * 4;
    return now;
  }
};

class RegionKillChurnTest : public ::testing::Test {
 protected:
  pid_t SpawnClient() const {
    std::vector<std::string> arguments = {NORMLOAD_BINARY,
                                          "--quiet",
                                          "--plane=shm",
                                          "--server=" + server_.grpc_address(),
                                          "--shared_memory=" + regions_,
                                          "--mix=instance_norm_64:2x64x33:float32:3,"
                                          "layer_norm_1024:7x1024:bf16",
                                          "--requests=2000",
                                          "--warmup=0s",
                                          "--concurrency=2",
                                          "--connections=1",
                                          "--verify",
                                          "--verify_every=1",
                                          "--model_repository=" NORMD_DEMO_MODELS};
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t quiet;
    posix_spawn_file_actions_init(&quiet);
    posix_spawn_file_actions_addopen(&quiet, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    pid_t pid = -1;
    EXPECT_EQ(posix_spawn(&pid, argv[0], &quiet, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&quiet);
    return pid;
  }

  // One client after the other, each beginning when the last has gone or was killed.
  void RunClients(std::size_t number) {
    while (!over_) {
      const pid_t pid = SpawnClient();
      int status = 0;
      pid_t ended = 0;
      bool killed = false;
      while ((ended = waitpid(pid, &status, WNOHANG)) == 0) {
        if (dies_[number].exchange(false)) killed = kill(pid, SIGKILL) == 0 || killed;
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
      ASSERT_EQ(ended, pid);
      if (killed && WIFSIGNALED(status)) {
        ++died_;
      } else {
        // 0: every response was there and right.
        EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
        ++finished_;
      }
    }
  }

  // The sum of the metrics' series that begin so, and have none of these in their labels.
  double Metric(const std::string& series, const std::vector<std::string>& without = {}) const {
    const auto url = client::ParseHttpUrl("http://" + server_.metrics_address() + "/metrics");
    const auto text = client::HttpGet(*url, std::chrono::seconds(10));
    EXPECT_TRUE(text.ok()) << text.status();
    double sum = 0;
    for (const absl::string_view line : absl::StrSplit(text.value_or(""), '\n')) {
      double value = 0;
      if (!absl::StartsWith(line, series)) continue;
      const auto has = [line](const std::string& label) { return absl::StrContains(line, label); };
      if (std::any_of(without.begin(), without.end(), has)) continue;
      if (absl::SimpleAtod(line.substr(line.rfind(' ') + 1), &value)) sum += value;
    }
    return sum;
  }
  double Answered() const { return Metric("normd_requests_total{"); }

  const TempFolder folder_;
  const std::string regions_ = "unix://" + folder_.File("regions");
  NormdProcess server_{{"--shared_memory=fd", "--shared_memory_listen=" + regions_}};
  std::atomic<bool> over_{false};
  std::array<std::atomic<bool>, kClients> dies_{};
  std::atomic<int> died_{0};
  std::atomic<int> finished_{0};
};

TEST_F(RegionKillChurnTest, LeavesNothingOfProcessesThatAreKilled) {
  const Seconds length(FromEnvironment("NORMD_CHURN_SECONDS", 8));
  const double requests = FromEnvironment("NORMD_CHURN_REQUESTS", 0);
  const auto begin = std::chrono::steady_clock::now();
  const auto passed = [begin] { return Seconds(std::chrono::steady_clock::now() - begin); };
  std::vector<std::thread> clients;
  for (std::size_t i = 0; i < kClients; ++i) clients.emplace_back([this, i] { RunClients(i); });
  const pid_t server = server_.child().pid();
  Footprint early;
  for (int death = 1; passed() < length || Answered() < requests; ++death) {
    std::this_thread::sleep_for(Seconds(death / 2.0) - passed());
    dies_[static_cast<std::size_t>(death % kClients)] = true;
    if (early.mappings == 0 && passed() > length / 3) early = Footprint::Of(server);
  }
  const Footprint late = Footprint::Of(server);
  over_ = true;
  for (std::thread& client : clients) client.join();
  WaitUntil([&] { return Metric("normd_shared_regions{") == 0; });
  std::printf(
      "%.0f s, %.0f requests, %d clients went, %d were killed; %ld and %ld KiB, %ld and %ld "
      "descriptors, %ld and %ld mappings\n",
      passed().count(), Answered(), finished_.load(), died_.load(),
      static_cast<long>(early.resident_kib), static_cast<long>(late.resident_kib),
      static_cast<long>(early.descriptors), static_cast<long>(late.descriptors),
      static_cast<long>(early.mappings), static_cast<long>(late.mappings));
  EXPECT_GT(Answered(), 1000);
  EXPECT_GT(died_, 2);
  // A killed client's call may come without its message, or after its region has gone.
  EXPECT_EQ(Metric("normd_requests_total{", {"\"OK\"", "\"CANCELLED\"", "\"NOT_FOUND\""}), 0);
  EXPECT_EQ(Metric("normd_shared_region_bytes{"), 0);
  EXPECT_EQ(Metric("normd_inflight_bytes "), 0);
  // Connections and regions that are there at the moment, and the allocator's arenas, vary.
  EXPECT_LE(late.resident_kib, early.resident_kib + 16384);
  EXPECT_LE(late.descriptors, early.descriptors + 6 * kClients);
  EXPECT_LE(late.mappings, early.mappings + 8 * kClients);
}

}  // namespace
}  // namespace normd::testing
