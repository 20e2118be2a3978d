#include "server/metrics/process_collector.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "server/metrics/saturation.h"
#include "tests/support/fake_clock.h"
#include "tests/support/temp_folder.h"

namespace normd {
namespace {

using ::testing::ElementsAre;
using ::testing::Key;

std::map<std::string, double> Values(const ProcessCollector& collector) {
  std::map<std::string, double> values;
  for (const prometheus::MetricFamily& family : collector.Collect()) {
    const prometheus::ClientMetric& metric = family.metric.at(0);
    values[family.name] =
        family.type == prometheus::MetricType::Counter ? metric.counter.value : metric.gauge.value;
  }
  return values;
}

// A folder with the files that are read.
class FakeProc : public testing::TempFolder {
 public:
  FakeProc() { std::filesystem::create_directories(File("self/fd")); }
};

TEST(ProcessCollectorTest, ReadsFieldsAfterANameThatHoldsParentheses) {
  const FakeProc proc;
  // Fields 14 and 15 are 300 and 200 ticks, 22 is 1000 ticks, 24 is 7 pages.
  proc.Write("self/stat",
             "42 (a) 9 9 (b c)) S 1 1 1 0 -1 4194560 5 0 0 0 300 200 0 0 20 0 4 0 1000 99 7 0\n");
  proc.Write("stat", "cpu 1 2 3\nbtime 1700000000\nprocesses 5\n");
  for (const char* file : {"self/fd/0", "self/fd/1", "self/fd/2"}) proc.Write(file, "");
  const std::map<std::string, double> values = Values(ProcessCollector(proc.path()));
  const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  EXPECT_EQ(values.at("process_cpu_seconds_total"), 500 / ticks);
  EXPECT_EQ(values.at("process_start_time_seconds"), 1700000000 + 1000 / ticks);
  EXPECT_EQ(values.at("process_resident_memory_bytes"),
            7 * static_cast<double>(sysconf(_SC_PAGESIZE)));
  EXPECT_EQ(values.at("process_open_fds"), 2);  // Three, less the one that reads.
}

TEST(ProcessCollectorTest, LeavesOutWhatCannotBeRead) {
  const FakeProc empty;
  EXPECT_THAT(Values(ProcessCollector(empty.path() + "/absent")),
              ElementsAre(Key("process_max_fds")));
  for (const char* stat :
       {"", "42 (cut", "42 (short) S 1 1", "42 (words) S a b c d e f g h i j k l"}) {
    empty.Write("self/stat", stat);
    EXPECT_THAT(Values(ProcessCollector(empty.path())),
                ElementsAre(Key("process_max_fds"), Key("process_open_fds")))
        << stat;
  }
}

TEST(ProcessCollectorTest, TellsOfThisProcess) {
  const ProcessCollector collector;
  std::map<std::string, double> values = Values(collector);
  EXPECT_GT(values.at("process_resident_memory_bytes"), 1 << 20);
  const auto now = static_cast<double>(std::time(nullptr));
  EXPECT_LE(values.at("process_start_time_seconds"), now + 2);
  EXPECT_GT(values.at("process_start_time_seconds"), now - 86400);
  const double before = values.at("process_open_fds");
  const int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  EXPECT_EQ(Values(collector).at("process_open_fds"), before + 1);
  close(fd);
  EXPECT_EQ(Values(collector).at("process_open_fds"), before);
  EXPECT_GE(values.at("process_max_fds"), before);

  const double cpu = values.at("process_cpu_seconds_total");
  const std::clock_t begin = std::clock();
  while (std::clock() - begin < CLOCKS_PER_SEC / 20) {
  }
  EXPECT_GT(Values(collector).at("process_cpu_seconds_total"), cpu);
}

// Two threads that gRPC runs handlers on, one of another kind, and what the test says of lanes.
class SaturationTest : public ::testing::Test {
 protected:
  SaturationTest() {
    for (const char* thread : {"1", "2", "3"}) {
      std::filesystem::create_directories(proc_.path() + "/self/task/" + thread);
      proc_.Write(absl::StrCat("self/task/", thread, "/comm"),
                  thread == std::string("3") ? "lane cpu:0\n" : "nexting_thread\n");
      Busy(thread, std::chrono::seconds(0), std::chrono::seconds(0));
    }
  }
  void Busy(const std::string& thread, Duration ran, Duration waited) const {
    proc_.Write("self/task/" + thread + "/schedstat",
                absl::StrCat(ran.count(), " ", waited.count(), " 9\n"));
  }

  const FakeProc proc_;
  FakeClock clock_;
  Duration no_lane_{};
  Saturation saturation_{[this] { return no_lane_; }, clock_, proc_.path()};
};

TEST_F(SaturationTest, IsTheShareOfTimeInWhichHandlersWorkedOrWaitedForACore) {
  using std::chrono::seconds;
  EXPECT_EQ(saturation_.Ratio(), 0);
  clock_.Advance(seconds(20));
  Busy("1", seconds(10), seconds(2));
  Busy("2", seconds(1), seconds(3));
  Busy("3", seconds(20), seconds(0));
  EXPECT_DOUBLE_EQ(saturation_.Ratio(), 16.0 / 40);
  clock_.Advance(seconds(20));
  EXPECT_DOUBLE_EQ(saturation_.Ratio(), 0);
}

TEST_F(SaturationTest, IsTheShareOfTimeWithoutALaneWhereThatIsMore) {
  using std::chrono::seconds;
  clock_.Advance(seconds(10));
  Busy("1", seconds(1), seconds(0));
  no_lane_ = seconds(9);
  EXPECT_DOUBLE_EQ(saturation_.Ratio(), 0.9);
  no_lane_ = seconds(30);
  clock_.Advance(seconds(20));
  EXPECT_EQ(saturation_.Ratio(), 1);
}

TEST_F(SaturationTest, HowOftenItIsAskedDoesNotChangeTheTimeThatItIsOf) {
  using std::chrono::seconds;
  for (int second = 1; second <= 100; ++second) {
    clock_.Advance(seconds(1));
    if (second % 2 == 0) no_lane_ += seconds(1);
    const double ratio = saturation_.Ratio();
    if (second < 10) continue;
    EXPECT_GE(ratio, 0.4) << second;
    EXPECT_LE(ratio, 0.6) << second;
  }
}

TEST(SaturationOfThisProcessTest, SeesThreadsOfThatNameAtWork) {
  if (!std::ifstream("/proc/self/schedstat")) GTEST_SKIP() << "the system tells nothing of threads";
  std::atomic<bool> stop{false};
  std::thread busy([&stop] {
    pthread_setname_np(pthread_self(), "nexting_thread");
    while (!stop) continue;
  });
  SteadyClock clock;
  Saturation saturation([] { return Duration(0); }, clock);
  double ratio = 0;
  const TimePoint end = clock.Now() + std::chrono::seconds(60);
  while (ratio < 0.5 && clock.Now() < end) ratio = saturation.Ratio();
  stop = true;
  busy.join();
  EXPECT_GE(ratio, 0.5);
  EXPECT_LE(ratio, 1);
}

TEST(SaturationOfThisProcessTest, IsZeroWhereTheSystemDoesNotTell) {
  const FakeProc empty;
  FakeClock clock;
  Saturation saturation([] { return Duration(0); }, clock, empty.path());
  clock.Advance(std::chrono::seconds(10));
  EXPECT_EQ(saturation.Ratio(), 0);
}

}  // namespace
}  // namespace normd
