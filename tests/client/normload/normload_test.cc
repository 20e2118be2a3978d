// What a command line does against a server that answers.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "client/load/histogram.h"
#include "tests/client/normload/normload_fixture.h"

namespace normd::load {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

TEST_F(NormloadTest, ClosedLoopCountsTimesAndVerifies) {
  Run({"--mix=norm:1x4x5:f32:3,norm:2x4x3:f16", "--requests=400", "--concurrency=4",
       "--connections=2", "--verify", "--verify_every=1", "--model_repository=" + folder_.path()});
  EXPECT_EQ(code_, kExitOk) << err_;
  EXPECT_EQ(err_, "");
  const Json& result = report_["result"];
  EXPECT_EQ(result["ok"], 400);
  EXPECT_EQ(result["codes"], (Json{{"OK", 400}}));
  EXPECT_EQ(result["verified"], 400);
  EXPECT_EQ(result["wrong"], 0);
  EXPECT_EQ(result["stopped_by"], "all requests sent");
  EXPECT_EQ(result["server_stage_means_us"]["compute"], 1.0);
  EXPECT_EQ(result["batch_requests"]["mean"], 2.0);
  EXPECT_EQ(result["response_time"]["count"], 400);
  EXPECT_EQ(server_.calls(), 402);  // One of each kind before the run.
  EXPECT_THAT(out_, AllOf(HasSubstr("closed loop, 4 callers, 2 connections"),
                          HasSubstr("400 responses, 0 wrong")));
}

TEST_F(NormloadTest, TheOpenInferenceProtocolCountsTimesAndVerifiesLikewise) {
  const std::vector<std::string> arguments = {
      "--protocol=oip",
      "--mix=norm:1x4x5:f32:3:priority=high:queue_timeout=1s,norm:2x4x3:f16",
      "--requests=400",
      "--concurrency=4",
      "--verify",
      "--verify_every=1",
      "--model_repository=" + folder_.path()};
  Run(arguments);
  EXPECT_EQ(code_, kExitOk) << err_;
  EXPECT_EQ(report_["options"]["protocol"], "oip");
  EXPECT_EQ(report_["result"]["ok"], 400);
  EXPECT_EQ(report_["result"]["verified"], 400);
  EXPECT_EQ(report_["result"]["wrong"], 0);
  EXPECT_GT(report_["result"]["received_bytes"], 0);
  EXPECT_EQ(report_["result"]["batch_requests"]["answers"], 0);
  EXPECT_THAT(out_, Not(HasSubstr("compute")));
  server_.AnswerWronglyFrom(server_.calls() + 100);
  Run(arguments);
  EXPECT_EQ(code_, kExitFailed);
  EXPECT_GT(report_["result"]["wrong"], 0);
}

TEST_F(NormloadTest, TheReportKeepsItsSchema) {
  Run({"--model=norm", "--shape=1x4x5", "--requests=10", "--seed=42"});
  ASSERT_EQ(code_, kExitOk) << err_;
  EXPECT_EQ(report_["schema"], "normload");
  EXPECT_EQ(report_["schema_version"], 1);
  EXPECT_EQ(report_["options"]["seed"], 42);
  EXPECT_EQ(report_["options"]["mix"][0]["shape"], Json({1, 4, 5}));
  EXPECT_EQ(report_["environment"]["server_version"], "fake");
  EXPECT_TRUE(report_["error"].is_null());
  // A histogram can be rebuilt from its part of the report.
  const Json& times = report_["result"]["response_time"];
  Histogram histogram;
  for (const Json& bucket : times["buckets"]) {
    ASSERT_TRUE(histogram.Add(bucket[0].get<std::size_t>(), bucket[1].get<std::int64_t>()));
  }
  histogram.SetExtremes(Duration{times["min_ns"].get<std::int64_t>()},
                        Duration{times["max_ns"].get<std::int64_t>()},
                        Duration{times["sum_ns"].get<std::int64_t>()});
  EXPECT_EQ(histogram.count(), 10);
  EXPECT_DOUBLE_EQ(1e-3 * static_cast<double>(histogram.Percentile(50).count()),
                   times["p50_us"].get<double>());
}

TEST_F(NormloadTest, OpenLoopSendsWhatItsArrivalsSay) {
  Run({"--model=norm", "--shape=1x4x5", "--requests=200", "--rate=20000", "--arrival=constant"});
  EXPECT_EQ(code_, kExitOk) << err_;
  EXPECT_EQ(report_["options"]["mode"], "open");
  EXPECT_EQ(report_["result"]["ok"], 200);
  EXPECT_EQ(report_["result"]["send_lag"]["count"], 200);
  EXPECT_THAT(out_, AllOf(HasSubstr("constant arrivals at 20000/s"), HasSubstr("send lag")));
}

// One call is out at a time, so that all of their service fits in the run.
TEST_F(NormloadTest, TheWaitOfCallsThatLeaveOneByOneIsNoService) {
  for (const std::string protocol : {"normd", "oip"}) {
    Run({"--model=norm", "--shape=1x4x5", "--rate=100000", "--arrival=constant", "--requests=300",
         "--connections=1", "--max_sending=1", "--protocol=" + protocol});
    ASSERT_EQ(code_, kExitOk) << err_;
    const auto sum = [&](const char* field) {
      return report_["result"][field]["sum_ns"].get<double>() / 1e9;
    };
    EXPECT_LE(sum("service_time"), report_["result"]["elapsed_s"].get<double>()) << protocol;
    EXPECT_NEAR(sum("service_time") + sum("send_lag"), sum("response_time"), 1e-6) << protocol;
  }
}

TEST_F(NormloadTest, ChoosesAShapeThatSuitsTheModel) {
  Run({"--model=norm", "--requests=10", "--verify", "--model_repository=" + folder_.path()});
  EXPECT_EQ(code_, kExitOk) << err_;
  EXPECT_EQ(report_["options"]["mix"][0]["shape"], Json({1, 4, 56, 56}));
  EXPECT_THAT(out_, HasSubstr("norm:1x4x56x56:float32"));
}

TEST_F(NormloadTest, VerifiesBothOutputsOfANormWithAResidual) {
  const v1::ModelConfig config =
      test::ConfigOf("add_rms_norm { normalized_shape: 8 affine: false }");
  server_.AddModel("add", config);
  server_.TellTensors("add", {{"x", {-2, 8}}, {"residual", {-2, 8}}},
                      {{"y", {-2, 8}}, {"residual_out", {-2, 8}}});
  test::WriteModel(folder_.path(), "add", config, {});
  Run({"--mix=add:3x8:bf16:2:residual=3x8,add,norm:1x4x5", "--requests=60", "--concurrency=3",
       "--verify", "--verify_every=1", "--model_repository=" + folder_.path()});
  EXPECT_EQ(code_, kExitOk) << err_;
  EXPECT_EQ(report_["result"]["verified"], 60);
  EXPECT_EQ(report_["result"]["wrong"], 0);
  server_.AnswerWronglyFrom(server_.calls() + 1);
  Run({"--model=add", "--requests=10", "--verify", "--verify_every=1",
       "--model_repository=" + folder_.path()});
  EXPECT_NE(code_, kExitOk);
  EXPECT_EQ(report_["result"]["wrong"], 10);
}

TEST_F(NormloadTest, AsksForAShapeWhereTheServerDoesNotTellItsInputs) {
  server_.AddModel("old", test::ConfigOf("instance_norm { channels: 4 }"));
  Run({"--model=old", "--requests=10"});
  EXPECT_NE(code_, kExitOk);
  EXPECT_THAT(err_, HasSubstr("old: the server does not tell the model's inputs"));
  Run({"--model=old", "--shape=1x4x5", "--requests=10"});
  EXPECT_EQ(code_, kExitOk) << err_;
}

TEST_F(NormloadTest, TheReportTellsHowItWasMade) {
  Run({"--model=norm", "--shape=1x4x5", "--requests=1", "--csv="});
  const std::string command = report_["environment"]["command"];
  EXPECT_THAT(command, HasSubstr("normload --model=norm --shape=1x4x5 --requests=1 --csv= "));
}

TEST_F(NormloadTest, AnInterruptStopsAndReports) {
  std::thread user([this] {
    server_.WaitForCalls(100);
    interrupts_.Interrupt();
  });
  Run({"--model=norm", "--shape=1x4x5", "--duration=100s", "--concurrency=4"});
  user.join();
  EXPECT_EQ(code_, kExitOk) << err_;
  EXPECT_EQ(report_["result"]["stopped_by"], "interrupted");
  EXPECT_GE(report_["result"]["ok"], 90);
}

TEST_F(NormloadTest, CancelledCallsAreNoErrors) {
  server_.HoldFrom(1);  // After the call before the run.
  Run({"--model=norm", "--shape=1x4x5", "--requests=10", "--concurrency=2", "--cancel_share=1",
       "--cancel_after=1ms"});
  server_.Release();
  EXPECT_EQ(code_, kExitOk) << err_;
  EXPECT_EQ(report_["result"]["cancelled"], 10);
  EXPECT_EQ(report_["result"]["requests"], 0);
}

TEST_F(NormloadTest, AnEntryHasItsOwnDeadline) {
  server_.HoldFrom(2);  // After those before the run.
  Run({"--mix=norm:1x4x5:timeout=1ms,norm:1x4x6:timeout=2ms", "--requests=10", "--concurrency=1",
       "--timeout=100s"});
  server_.Release();
  EXPECT_EQ(report_["result"]["codes"], (Json{{"DEADLINE_EXCEEDED", 10}}));
  const Json& entries = report_["result"]["by_entry"];
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0]["entry"], "norm:1x4x5:float32:timeout=1ms");
}

TEST_F(NormloadTest, StreamsAndCallsAreMixedAndVerified) {
  Run({"--mix=norm:8x4x300:f32:1:stream=1KiB,norm:1x4x5", "--requests=200", "--concurrency=4",
       "--verify", "--verify_every=1", "--model_repository=" + folder_.path()});
  EXPECT_EQ(code_, kExitOk) << err_;
  const Json& result = report_["result"];
  EXPECT_EQ(result["ok"], 200);
  EXPECT_EQ(result["verified"], 200);
  EXPECT_EQ(result["wrong"], 0);
  const Json& stream = result["by_entry"][0];
  EXPECT_EQ(stream["entry"], "norm:8x4x300:float32:stream=1KiB");
  const std::int64_t streams = stream["response_time"]["count"];
  EXPECT_GT(streams, 0);
  EXPECT_EQ(stream["received_bytes"], streams * 8 * 4 * 300 * 4);
  EXPECT_EQ(stream["first_bytes"]["count"], streams);
  EXPECT_LE(stream["first_bytes"]["max_us"], stream["response_time"]["max_us"]);
  EXPECT_FALSE(result["by_entry"][1].contains("first_bytes"));
  EXPECT_THAT(out_, HasSubstr("first bytes"));
}

TEST_F(NormloadTest, AStreamCountsFromItsIntendedSend) {
  server_.HoldFrom(1);  // After the one before the run.
  std::thread releaser([this] {
    server_.WaitForCalls(31);  // 30 ms of the schedule.
    server_.Release();
  });
  Run({"--model=norm", "--shape=1x4x5", "--stream", "--rate=1000", "--arrival=constant",
       "--requests=30"});
  releaser.join();
  EXPECT_EQ(code_, kExitOk) << err_;
  EXPECT_EQ(report_["options"]["mix"][0]["stream_chunk_bytes"], 1 << 20);
  EXPECT_GE(report_["result"]["response_time"]["max_us"], 29000);
  EXPECT_GE(report_["result"]["by_entry"][0]["first_bytes"]["max_us"], 29000);
}

TEST_F(NormloadTest, StreamsAreCancelledAsAsked) {
  server_.HoldFrom(1);
  Run({"--model=norm", "--shape=1x4x5", "--stream", "--requests=10", "--concurrency=2",
       "--cancel_share=1"});
  server_.Release();
  EXPECT_EQ(code_, kExitOk) << err_;
  EXPECT_EQ(report_["result"]["cancelled"], 10);
}

// The open loop sends on while the server stalls, so a stall is as many samples as it is long. That
// the k-th call is not sent before its time bounds the response times of those held from below, on
// however slow a machine.
TEST_F(NormloadTest, AStalledServerShowsInTheOpenLoop) {
  server_.HoldFrom(101);
  std::thread releaser([this] {
    server_.WaitForCalls(161);  // 60 calls later, which is 60 ms of the schedule.
    server_.Release();
  });
  Run({"--model=norm", "--shape=1x4x5", "--rate=1000", "--arrival=constant", "--requests=300"});
  releaser.join();
  EXPECT_EQ(code_, kExitOk) << err_;
  const Json& times = report_["result"]["response_time"];
  // The longest is that of the first call held; of 300 calls, 30 waited for 30 ms and more.
  EXPECT_GE(times["p99_9_us"], 59000);
  EXPECT_GE(times["p90_us"], 29000);
}

// The closed loop waits with the server: however long the stall, it is one sample of each caller.
TEST_F(NormloadTest, TheSameStallIsOneSampleOfTheClosedLoop) {
  server_.HoldFrom(101);
  std::int64_t arrived_in_the_stall = 0;
  std::thread releaser([&] {
    server_.WaitForCalls(102);
    arrived_in_the_stall = server_.calls() - 101;
    server_.Release();
  });
  Run({"--model=norm", "--shape=1x4x5", "--concurrency=1", "--requests=300"});
  releaser.join();
  EXPECT_EQ(code_, kExitOk) << err_;
  EXPECT_EQ(arrived_in_the_stall, 1);
  EXPECT_EQ(report_["result"]["ok"], 300);
}

TEST_F(NormloadTest, ATraceIsSentToItsEnd) {
  test::WriteFile(folder_.File("trace"), "0\n0.001\n0.001\n0.002\n");
  Run({"--model=norm", "--shape=1x4x5", "--arrivals_file=" + folder_.File("trace")});
  EXPECT_EQ(code_, kExitOk) << err_;
  EXPECT_EQ(report_["result"]["ok"], 4);
  EXPECT_EQ(report_["result"]["stopped_by"], "arrivals ended");
}

TEST_F(NormloadTest, ASweepHasAPointForEachLoad) {
  Run({"--model=norm", "--shape=1x4x5", "--sweep=concurrency=1,3", "--requests=30",
       "--csv=" + folder_.File("points.csv")});
  EXPECT_EQ(code_, kExitOk) << err_;
  ASSERT_EQ(report_["points"].size(), 2u);
  EXPECT_EQ(report_["points"][0]["load"], 1);
  EXPECT_EQ(report_["points"][1]["load"], 3);
  EXPECT_EQ(report_["points"][0]["result"]["ok"], 30);
  EXPECT_EQ(report_["result"], report_["points"][1]["result"]);
  EXPECT_THAT(test::ReadFile(folder_.File("points.csv")), HasSubstr("\nrun,3,"));
}

TEST_F(NormloadTest, ASweepGoesOnBeyondErrorsAndFailsAtTheEnd) {
  server_.FailFrom(11, absl::ResourceExhaustedError("queue: full"));
  Run({"--model=norm", "--shape=1x4x5", "--sweep=concurrency=1,1,1", "--requests=10"});
  EXPECT_EQ(code_, kExitFailed);
  ASSERT_EQ(report_["points"].size(), 3u);
  EXPECT_EQ(report_["points"][0]["result"]["errors"], 0);
  EXPECT_EQ(report_["points"][2]["result"]["errors"], 10);
}

TEST_F(NormloadTest, TheSearchEndsWithTheHighestRateThatMeetsTheObjective) {
  // Every rate meets an hour.
  Run({"--model=norm", "--shape=1x4x5", "--find_max", "--slo=p50=1h", "--requests=2",
       "--arrival=constant"});
  EXPECT_EQ(code_, kExitOk) << err_;
  EXPECT_EQ(report_["load"], 1e6);
  EXPECT_EQ(report_["result"]["objective"]["met"], true);
}

TEST_F(NormloadTest, ASearchWhoseRunsAreTooShortSaysThatItKnowsNothing) {
  Run({"--model=norm", "--shape=1x4x5", "--find_max", "--slo=p99=1h", "--requests=10",
       "--arrival=constant"});
  EXPECT_EQ(code_, kExitFailed);
  EXPECT_THAT(err_, HasSubstr("the search knows nothing: the run at 1e+06/s had 10 responses, "
                              "wanted at least 100 for p99: --duration or --requests"));
  EXPECT_THAT(out_, Not(HasSubstr("the highest rate that met")));
}

TEST_F(NormloadTest, AnObjectiveThatNoRateMeetsIsAFailure) {
  Run({"--model=norm", "--shape=1x4x5", "--find_max", "--slo=p99=1ns", "--requests=1",
       "--arrival=constant", "--rate=1"});
  EXPECT_EQ(code_, kExitFailed);
  EXPECT_THAT(err_, HasSubstr("NOT_FOUND: no rate from 0.1/s on meets p99 <= 1ns"));
  EXPECT_GE(report_["points"].size(), 8u);
}

TEST_F(NormloadTest, ReportsOfProcessesAreMerged) {
  Run({"--model=norm", "--shape=1x4x5", "--requests=20"});
  test::WriteFile(folder_.File("one.json"), test::ReadFile(folder_.File("report.json")));
  Run({"--model=norm", "--shape=1x4x5", "--requests=30"});
  RunPlainly({"merge", folder_.File("one.json"), folder_.File("report.json"),
              "--json=" + folder_.File("both.json")});
  EXPECT_EQ(code_, kExitOk) << err_;
  const Json both = Json::parse(test::ReadFile(folder_.File("both.json")), nullptr, false);
  EXPECT_EQ(both["processes"], 2);
  EXPECT_EQ(both["result"]["ok"], 50);
  EXPECT_EQ(both["result"]["response_time"]["count"], 50);
  EXPECT_THAT(out_, HasSubstr("processes      2"));
}

TEST_F(NormloadTest, AReportThatCannotBeWrittenEndsWithItsOwnCode) {
  std::ostream nowhere(nullptr);
  std::ostringstream err;
  EXPECT_EQ(RunNormload({"--server=" + server_.target(), "--model=norm", "--shape=1x4x5",
                         "--requests=2", "--warmup=0s", "--quiet"},
                        interrupts_, nowhere, err, false),
            kExitUsage);
  EXPECT_EQ(err.str(), "normload: stdout: cannot be written\n");
  Run({"--model=norm", "--shape=1x4x5", "--requests=2"});
  ASSERT_EQ(code_, kExitOk) << err_;
  for (const char* flag : {"--json=/dev/full", "--csv=/nonexistent/x", "--html=/dev/full"}) {
    RunPlainly({"merge", folder_.File("report.json"), flag});
    EXPECT_EQ(code_, kExitUsage) << flag;
    EXPECT_THAT(err_, HasSubstr("cannot write the report"));
  }
}

TEST_F(NormloadTest, WhatCannotBeMergedIsNamed) {
  test::WriteFile(folder_.File("text"), "no report");
  for (const auto& [file, what] : std::vector<std::pair<std::string, std::string>>{
           {folder_.File("absent"), "absent: cannot read it"},
           {"/", "/: cannot read it"},
           {folder_.File("text"), "text: no report of normload"}}) {
    RunPlainly({"merge", file});
    EXPECT_EQ(code_, kExitUsage);
    EXPECT_THAT(err_, HasSubstr(what));
  }
}

}  // namespace
}  // namespace normd::load
