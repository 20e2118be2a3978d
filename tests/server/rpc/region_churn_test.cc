// Regions that come and go for 5 s, or NORMD_CHURN_SECONDS: eight clients that register, infer and
// unregister, of which one dies three times a second, with a request inside, its file cut off and
// its region left behind. Every response is right or a clear error, and in the end
// the process has no more memory, descriptors and mappings than after a third of the time.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/server/rpc/region_fixture.h"
#include "tests/support/threads.h"

namespace normd::testing {
namespace {

using Code = grpc::StatusCode;
using Seconds = std::chrono::duration<double>;

constexpr int kClients = 8;

Seconds TestLength() {
  const char* const seconds = std::getenv("NORMD_CHURN_SECONDS");
  return Seconds(seconds != nullptr ? std::atof(seconds) : 5);
}

// What must not grow.
struct Footprint {
  std::int64_t resident_kib = 0;
  std::int64_t descriptors = 0;
  std::int64_t mappings = 0;

  static Footprint Read() {
    Footprint now;
    std::ifstream maps("/proc/self/maps");
    now.mappings = std::count(std::istreambuf_iterator<char>(maps), {}, '\n');
    now.descriptors = std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
    std::ifstream statm("/proc/self/statm");
    std::int64_t pages = 0;
    statm >> pages >> pages;
    now.resident_kib = pages * 4;
    return now;
  }
};

class RegionChurnTest : public RegionFixture {
 protected:
  // One life of a client, with a connection of its own.
  class Life {
   public:
    Life(RegionChurnTest& test, std::string region)
        : test_(test),
          region_(std::move(region)),
          stub_(Inference::NewStub(test.server_.NewChannel())) {}

    // Registers, infers until the time is over or it dies, unregisters. False: it has died.
    bool Run(const std::atomic<bool>& over, const std::atomic<bool>& dies) {
      SharedFile file(kFileBytes);
      WriteInput(file, test_.plain_);
      for (int round = 0; !over; ++round) {
        if (!Register(file)) continue;
        for (int call = 0; call < 20; ++call) {
          if (dies) return Die(file);
          Infer(file, call % 2 == 0);
        }
        Unregister();
      }
      return true;
    }

   private:
    bool Register(const SharedFile& file) {
      inference::SystemSharedMemoryRegisterRequest request;
      request.set_name(region_);
      request.set_key(file.key());
      request.set_byte_size(kFileBytes);
      inference::SystemSharedMemoryRegisterResponse unused;
      grpc::ClientContext context;
      // The first call of a client: on a busy machine a connect has failed, and gRPC tries again.
      context.set_wait_for_ready(true);
      const grpc::Status status = stub_->SystemSharedMemoryRegister(&context, request, &unused);
      EXPECT_TRUE(status.ok()) << status.error_message();
      return status.ok();
    }
    void Unregister() {
      inference::SystemSharedMemoryUnregisterRequest request;
      request.set_name(region_);
      inference::SystemSharedMemoryUnregisterResponse unused;
      grpc::ClientContext context;
      const grpc::Status status = stub_->SystemSharedMemoryUnregister(&context, request, &unused);
      EXPECT_TRUE(status.ok()) << status.error_message();
    }
    inference::ModelInferRequest Request(bool in_place) const {
      const RegionPart x{region_.c_str()};
      const RegionPart y{region_.c_str(), kY};
      inference::ModelInferRequest request = InRegions(x, y);
      if (!in_place) request.clear_outputs();
      return request;
    }
    void Infer(const SharedFile& file, bool in_place) {
      std::memset(file.data() + kY, 0xff, kTensorBytes);
      inference::ModelInferResponse response;
      grpc::ClientContext context;
      const grpc::Status status = stub_->ModelInfer(&context, Request(in_place), &response);
      if (!status.ok()) {
        EXPECT_EQ(status.error_code(), Code::RESOURCE_EXHAUSTED) << status.error_message();
        return;
      }
      ++test_.answered_;
      const bool right = in_place ? OutputIn(file, kY) == test_.expected_
                                  : response.raw_output_contents(0) == test_.expected_;
      EXPECT_TRUE(right);
    }
    // Leaves everything as it is, but for its file, which is cut off under its last request.
    bool Die(SharedFile& file) {
      grpc::ClientContext context;
      inference::ModelInferResponse response;
      const inference::ModelInferRequest request = Request(true);
      std::atomic<bool> ended{false};
      stub_->async()->ModelInfer(&context, &request, &response,
                                 [&ended](const grpc::Status&) { ended = true; });
      file.Resize(0);
      context.TryCancel();
      WaitUntil([&] { return ended.load(); });
      stub_.reset();
      return false;
    }

    RegionChurnTest& test_;
    const std::string region_;
    std::unique_ptr<Inference::Stub> stub_;
  };

  // One client after the other, each beginning when the last has died.
  void RunClients(int number) {
    for (int life = 0; !over_; ++life) {
      const std::string region = absl::StrCat("client_", number, "_", life);
      if (Life(*this, region).Run(over_, dies_[static_cast<std::size_t>(number)])) return;
      dies_[static_cast<std::size_t>(number)] = false;
      ++died_;
      // What the dead leave, somebody has to unregister.
      EXPECT_TRUE(RegionFixture::Unregister(region).ok());
    }
  }

  const v1::NormalizeRequest plain_ = Plain();
  const std::string expected_ = Expected(plain_);
  std::atomic<bool> over_{false};
  std::array<std::atomic<bool>, kClients> dies_{};
  std::atomic<std::int64_t> answered_{0};
  std::atomic<std::int64_t> died_{0};
};

TEST_F(RegionChurnTest, LeavesNothingOfClientsThatComeAndDie) {
  const auto begin = std::chrono::steady_clock::now();
  const auto passed = [begin] { return Seconds(std::chrono::steady_clock::now() - begin); };
  std::vector<std::thread> clients;
  for (int i = 0; i < kClients; ++i) clients.emplace_back([this, i] { RunClients(i); });
  Footprint early;
  for (int death = 1; passed() < TestLength(); ++death) {
    while (passed() < std::min(Seconds(death / 3.0), TestLength())) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    dies_[static_cast<std::size_t>(death % kClients)] = true;
    if (early.mappings == 0 && passed() > TestLength() / 3) early = Footprint::Read();
  }
  const Footprint late = Footprint::Read();
  over_ = true;
  for (std::thread& client : clients) client.join();
  server_.WaitIdle();
  std::printf(
      "%ld answered, %ld died; %ld and %ld KiB, %ld and %ld descriptors, %ld and %ld "
      "mappings\n",
      static_cast<long>(answered_), static_cast<long>(died_), static_cast<long>(early.resident_kib),
      static_cast<long>(late.resident_kib), static_cast<long>(early.descriptors),
      static_cast<long>(late.descriptors), static_cast<long>(early.mappings),
      static_cast<long>(late.mappings));
  EXPECT_GT(answered_, 100);
  EXPECT_GT(died_, 2);
  EXPECT_EQ(NamedRegions(), 0);
  EXPECT_EQ(server_.Metric("normd_shared_region_bytes{kind=\"named\"}"), 0);
  // Connections and files that are open at the moment, and the allocator's arenas, vary.
#ifndef NORMD_SANITIZED  // AddressSanitizer keeps for a while what was freed.
  EXPECT_LE(late.resident_kib, early.resident_kib + 16384);
#endif
  EXPECT_LE(late.descriptors, early.descriptors + 3 * kClients);
  EXPECT_LE(late.mappings, early.mappings + 6 * kClients);
}

}  // namespace
}  // namespace normd::testing
