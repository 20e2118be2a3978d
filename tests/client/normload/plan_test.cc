// "normload plan", from a report's file to the answer.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "client/normload/normload.h"
#include "client/normload/parse_options.h"
#include "client/normload/report.h"
#include "nlohmann/json.hpp"
#include "tests/support/temp_repository.h"

namespace normd::load {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using Json = nlohmann::json;

class NobodyInterrupts final : public Interrupts {
 public:
  bool Wait(Duration) override { return false; }
};

// A server of two lanes that take 10 ms + n * 5 ms for batches of up to 4; 1 ms is beside.
std::string MeasuredReport() {
  Report report;
  report.options = ParseOptions(std::vector<std::string>{"--model=m"}).value();
  report.started_at = "2026-11-23T02:00:00Z";
  report.server.add_lanes("cpu:0");
  report.server.add_lanes("cpu:1");
  RunReport run;
  Outcome outcome;
  for (int n = 1; n <= 4; ++n) {
    outcome.batch_requests = n;
    outcome.stages[4] = milliseconds(10 + 5 * n);
    for (int i = 0; i < 200; ++i) {
      run.result.measured.lane_times.Record(outcome, outcome.stages[4] + milliseconds(1));
    }
  }
  report.runs = {run};
  return JsonReport(report);
}

class PlanTest : public ::testing::Test {
 protected:
  PlanTest() { test::WriteFile(folder_.File("one.json"), MeasuredReport()); }

  void Plan(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "plan");
    arguments.push_back("--json=" + folder_.File("plan.json"));
    NobodyInterrupts interrupts;
    std::ostringstream out;
    std::ostringstream err;
    code_ = RunNormload(arguments, interrupts, out, err, false);
    out_ = out.str();
    err_ = err.str();
    plan_ = Json::parse(test::ReadFile(folder_.File("plan.json")), nullptr, false);
  }
  std::string report() const { return folder_.File("one.json"); }

  const test::TempFolder folder_;
  int code_ = -1;
  std::string out_;
  std::string err_;
  Json plan_;
};

TEST_F(PlanTest, FindsTheFewestReplicas) {
  Plan({report(), "--rate=2000", "--slo=p99=100ms"});
  ASSERT_EQ(code_, kExitOk) << err_;
  // Two lanes, four in 30 ms each.
  EXPECT_NEAR(plan_["replica_max_rate_per_s"].get<double>(), 266.7, 1);
  EXPECT_EQ(plan_["lanes"], 2);
  EXPECT_EQ(plan_["max_batch_requests"], 4);
  const Json& chosen = plan_["points"][plan_["chosen"].get<std::size_t>()];
  const int replicas = chosen["replicas"].get<int>();
  EXPECT_GE(replicas, 8);  // 2000 / 266.7.
  EXPECT_LE(replicas, 12);
  EXPECT_LE(chosen["p99_us"].get<double>(), 100'000);
  EXPECT_THAT(out_, HasSubstr(std::to_string(replicas) + " replicas meet p99 <= 100ms at 2000/s"));

  Plan({report(), "--rate=2000", "--slo=p99=100ms", "--replicas=" + std::to_string(replicas - 1)});
  EXPECT_EQ(code_, kExitFailed);
  EXPECT_THAT(out_, HasSubstr("is not met by up to " + std::to_string(replicas - 1)));
}

TEST_F(PlanTest, BurstsAndOutagesNeedMore) {
  const auto chosen = [this] {
    EXPECT_EQ(code_, kExitOk) << err_ << out_;
    return plan_["points"][plan_["chosen"].get<std::size_t>()]["replicas"].get<int>();
  };
  Plan({report(), "--rate=2000", "--slo=p99=100ms"});
  const int calm = chosen();
  Plan({report(), "--rate=2000", "--slo=p99=100ms", "--arrival=bursts"});
  EXPECT_GT(chosen(), calm);
  Plan({report(), "--rate=2000", "--slo=p99=100ms", "--crash_every=60s"});
  EXPECT_GT(chosen(), calm);
}

TEST_F(PlanTest, UsesNoMoreThanTheLoadThatItMay) {
  Plan({report(), "--rate=20000", "--slo=p99=10s", "--max_load=0.5"});
  ASSERT_EQ(code_, kExitOk) << err_;
  EXPECT_NEAR(plan_["points"][0]["replicas"].get<double>(), 20000 / 266.7 / 0.5, 1);
}

// What a lane does besides is what is left where twice as many callers as it holds never let it
// wait.
TEST_F(PlanTest, FindsTheTurnaroundOfASaturatedRun) {
  Json saturated = Json::parse(MeasuredReport());
  saturated["options"]["concurrency"] = 16;
  // 200 responses of each size, over both lanes, and 1 ms between two batches.
  const double batches = 200 + 100 + 200 / 3.0 + 50;
  const double busy_s = 200 * 0.015 + 100 * 0.020 + 200 / 3.0 * 0.025 + 50 * 0.030;
  saturated["result"]["elapsed_s"] = (busy_s + batches * 0.001) / 2;
  test::WriteFile(folder_.File("saturated.json"), saturated.dump());
  Plan({folder_.File("saturated.json"), "--rate=100", "--slo=p99=1s"});
  EXPECT_NEAR(plan_["turnaround_us"].get<double>(), 1000, 5);
  saturated["options"]["concurrency"] = 15;
  test::WriteFile(folder_.File("saturated.json"), saturated.dump());
  Plan({folder_.File("saturated.json"), "--rate=100", "--slo=p99=1s"});
  EXPECT_EQ(plan_["turnaround_us"], 0);
}

TEST_F(PlanTest, SimulatesListedOutages) {
  test::WriteFile(folder_.File("outages.txt"), "crash 0 2 1.5\n\nhang 1 5 1\n");
  Plan({report(), "--rate=200", "--replicas=2", "--duration=10s",
        "--outages_file=" + folder_.File("outages.txt")});
  ASSERT_EQ(code_, kExitOk) << err_;
  EXPECT_GT(plan_["points"][0]["retries"].get<int>(), 0);
  EXPECT_EQ(plan_["points"][0]["lost"], 0);
  for (const char* line :
       {"crash 0 2", "burn 0 2 1", "crash -1 2 1", "crash 0 x 1", "crash 0 2 0"}) {
    test::WriteFile(folder_.File("outages.txt"), std::string(line) + "\n");
    Plan({report(), "--rate=200", "--replicas=2", "--outages_file=" + folder_.File("outages.txt")});
    EXPECT_EQ(code_, kExitUsage) << line;
    EXPECT_THAT(err_, HasSubstr("--outages_file: line 1: \"")) << line;
  }
}

TEST_F(PlanTest, SimulatesATrace) {
  std::string trace;
  for (int i = 0; i < 500; ++i) trace += std::to_string(0.1 * i) + "\n";
  test::WriteFile(folder_.File("trace.txt"), trace);
  Plan({report(), "--arrivals_file=" + folder_.File("trace.txt"), "--replicas=1"});
  ASSERT_EQ(code_, kExitOk) << err_;
  const Json& point = plan_["points"][0];
  EXPECT_EQ(point["requests"], 500);
  // One at a time: 15 ms in the lane and 1 ms beside.
  EXPECT_NEAR(point["p50_us"].get<double>(), 16'000, 50);
  EXPECT_NEAR(point["p99_us"].get<double>(), 16'000, 50);
}

TEST_F(PlanTest, RefusalsNameWhatIsWrong) {
  const auto refusal = [this](std::vector<std::string> arguments) {
    Plan(std::move(arguments));
    EXPECT_EQ(code_, kExitUsage);
    return err_;
  };
  EXPECT_THAT(refusal({"--rate=5", "--slo=p99=1s"}), HasSubstr("at least one report"));
  EXPECT_THAT(refusal({report(), "--slo=p99=1s"}), HasSubstr("--rate: 0, wanted"));
  EXPECT_THAT(refusal({report(), "--rate=-1", "--slo=p99=1s"}), HasSubstr("--rate: -1, wanted"));
  EXPECT_THAT(refusal({report(), "--rate=nan", "--slo=p99=1s"}), HasSubstr("--rate: nan, wanted"));
  EXPECT_THAT(refusal({report(), "--rate=5"}), HasSubstr("--slo: empty, wanted"));
  EXPECT_THAT(refusal({report(), "--rate=5", "--slo=p99"}), HasSubstr("--slo: \"p99\", wanted"));
  EXPECT_THAT(refusal({report(), "--rate=5", "--slo=p99=1s", "--balance=best"}),
              HasSubstr("--balance: \"best\", wanted"));
  EXPECT_THAT(refusal({report(), "--rate=5", "--slo=p99=1s", "--arrival=never"}),
              HasSubstr("--arrival: \"never\", wanted"));
  EXPECT_THAT(refusal({report(), "--rate=5", "--slo=p99=1s", "--burst_share=1"}),
              HasSubstr("--burst_share: 1, wanted"));
  EXPECT_THAT(
      refusal({report(), "--rate=5", "--slo=p99=1s", "--crash_every=1h", "--hang_every=1h"}),
      HasSubstr("--hang_every: wanted without --crash_every"));
  EXPECT_THAT(refusal({folder_.File("none.json"), "--rate=5", "--slo=p99=1s"}),
              HasSubstr("none.json: cannot read it"));
  EXPECT_THAT(refusal({report(), "--arrivals_file=none", "--replicas=1"}),
              HasSubstr("--arrivals_file: cannot read none"));
}

TEST_F(PlanTest, AReportWithoutBatchesSaysSo) {
  Json without = Json::parse(MeasuredReport());
  without["result"].erase("lane_times");
  test::WriteFile(folder_.File("without.json"), without.dump());
  Plan({folder_.File("without.json"), "--rate=5", "--slo=p99=1s"});
  EXPECT_EQ(code_, kExitUsage);
  EXPECT_THAT(err_, HasSubstr("no response told of its batch"));
}

TEST_F(PlanTest, NoFleetIsLargeEnoughForTheImpossible) {
  Plan({report(), "--rate=2000", "--slo=p99=5ms", "--max_replicas=30"});
  EXPECT_EQ(code_, kExitFailed);
  EXPECT_TRUE(plan_["chosen"].is_null());
  EXPECT_THAT(out_, HasSubstr("p99 <= 5ms is not met by up to 30 replicas"));
}

TEST_F(PlanTest, LaneTimesSurviveTheReportAndItsMerge) {
  const Report read = ParseJsonReport(MeasuredReport()).value();
  const Report merged = MergeReports({read, read}).value();
  const LaneTimes& times = merged.run().result.measured.lane_times;
  ASSERT_EQ(times.by_batch().size(), 4u);
  EXPECT_EQ(times.by_batch().at(4).count(), 400);
  EXPECT_EQ(times.by_batch().at(4).max(), milliseconds(30));
  EXPECT_EQ(times.beside().count(), 1600);
}

TEST_F(PlanTest, HelpNamesTheFlags) {
  NobodyInterrupts interrupts;
  std::ostringstream out;
  EXPECT_EQ(RunNormload(std::vector<std::string>{"plan", "--help"}, interrupts, out, out, false),
            kExitOk);
  for (const char* flag : {"--rate", "--slo", "--burst_factor", "--crash_every", "--clients"}) {
    EXPECT_THAT(out.str(), HasSubstr(flag));
  }
}

}  // namespace
}  // namespace normd::load
