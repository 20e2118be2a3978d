#include "client/load/rate_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "client/load/objective.h"
#include "client/load/stop_rule.h"
#include "tests/client/load/simulation.h"

namespace normd::load {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Decision = StopRule::Decision;

TEST(ParseSweepTest, ReadsValuesAndRanges) {
  const auto callers = ParseSweep("concurrency=1..16*4,20");
  ASSERT_TRUE(callers.ok()) << callers.status();
  EXPECT_FALSE(callers->over_rate);
  EXPECT_THAT(callers->values, ElementsAre(1, 4, 16, 20));
  const auto rates = ParseSweep("rate=0.5,100..400+150");
  ASSERT_TRUE(rates.ok()) << rates.status();
  EXPECT_TRUE(rates->over_rate);
  EXPECT_THAT(rates->values, ElementsAre(0.5, 100, 250, 400));
}

TEST(ParseSweepTest, NamesWhatIsWrong) {
  for (const auto& [text, what] : std::vector<std::pair<const char*, const char*>>{
           {"", "unknown variable"},
           {"load=1", "unknown variable"},
           {"rate=", "\"\" is no value"},
           {"rate=1,x", "\"x\" is no value"},
           {"rate=1..5", "\"1..5\" is no value"},
           {"rate=1..5*1", "\"1..5*1\" is no value"},
           {"rate=1..5+0", "\"1..5+0\" is no value"},
           {"rate=-1", "\"-1\" is no value"},
           {"rate=5..1+1", "wanted 1 to 1000 values"},
           {"rate=1..1e9+1", "wanted 1 to 1000 values"},
           {"concurrency=1.5", "1.5 is no number of callers"}}) {
    EXPECT_THAT(std::string(ParseSweep(text).status().message()), HasSubstr(what)) << text;
  }
}

// Searches where `met` says how each rate goes; returns the rates tried.
std::vector<double> Tried(RateSearch& search, const std::function<bool(double)>& met) {
  std::vector<double> tried;
  while (const std::optional<double> rate = search.Next()) {
    tried.push_back(*rate);
    search.Observe(met(*rate));
    if (tried.size() > 1000) break;
  }
  return tried;
}

TEST(RateSearchTest, EnclosesTheHighestRateThatMeetsTheObjective) {
  for (const double limit : {0.7, 99.0, 101.0, 3456.0, 654321.0}) {
    RateSearch search({});
    const std::vector<double> tried = Tried(search, [&](double rate) { return rate <= limit; });
    EXPECT_LE(search.best(), limit);
    EXPECT_GE(search.best() * 1.02, limit);
    EXPECT_LT(tried.size(), 40u);
  }
}

TEST(RateSearchTest, DoublesBeforeItBisects) {
  RateSearch search({});
  const std::vector<double> tried = Tried(search, [](double rate) { return rate <= 450; });
  ASSERT_GE(tried.size(), 6u);
  EXPECT_THAT(std::vector<double>(tried.begin(), tried.begin() + 5),
              ElementsAre(100, 200, 400, 800, 800));
  EXPECT_NEAR(tried[5], 565.7, 0.1);
}

TEST(RateSearchTest, OneMissIsTriedAgain) {
  RateSearch search({});
  int misses_at_200 = 0;
  Tried(search, [&](double rate) {
    if (rate == 200 && misses_at_200++ == 0) return false;
    return rate <= 1000;
  });
  EXPECT_GE(search.best() * 1.02, 1000);
}

TEST(RateSearchTest, EndsAtItsBounds) {
  RateSearch none({});
  EXPECT_EQ(Tried(none, [](double) { return false; }).back(), 0.1);
  EXPECT_EQ(none.best(), 0);
  RateSearch all({});
  EXPECT_EQ(Tried(all, [](double) { return true; }).back(), 1e6);
  EXPECT_EQ(all.best(), 1e6);
}

// One server that serves each request for 1 ms, Poisson arrivals, p99 of the response time at most
// 5 ms.
double FindMax(std::uint64_t seed) {
  const Workload workload = Workload::Create(ParseMix("m:1x4").value(), 1).value();
  const Objective objective = ParseObjective("p99=5ms").value();
  RateSearch search({});
  while (const std::optional<double> rate = search.Next()) {
    Simulation simulation;
    SimulatedServer server(simulation, std::chrono::milliseconds(1));
    LoadOptions options;
    options.arrivals = PoissonArrivals(*rate, seed++);
    options.stop.requests = 15000;
    LoadRun run(std::move(options), workload, server, simulation);
    run.Run();
    search.Observe(Judge(objective, run.Snapshot(), 0).met);
  }
  return search.best();
}

TEST(RateSearchTest, FindsTheSameRateOnThreeRunsAgainstAKnownServiceTime) {
  const std::vector<double> found = {FindMax(1000), FindMax(2000), FindMax(3000)};
  for (const double rate : found) EXPECT_NEAR(rate, found.front(), 0.05 * found.front());
  // Theory agrees. In an M/D/1 queue 1 % of the requests wait for more than 4 services at a load of
  // 0.56: the tail is C exp(-4 eta), with load (exp(eta) - 1) = eta and
  // C = (1 - load) / (load exp(eta) - 1). Source: Tijms, "A First Course in Stochastic Models".
  EXPECT_NEAR(found.front(), 560, 0.05 * 560);
}

// Answers with OK after 1 ms, 2 ms, ... `ok` ms, within ten seconds.
LoadResult Answers(int ok) {
  LoadResult result;
  result.elapsed = seconds(10);
  result.measured.codes[0] = ok;
  for (int i = 1; i <= ok; ++i) result.measured.response_time.Record(milliseconds(i));
  return result;
}

TEST(ObjectiveTest, IsReadAndWritten) {
  const auto objective = ParseObjective("p99.9=5ms");
  ASSERT_TRUE(objective.ok()) << objective.status();
  EXPECT_EQ(objective->percent, 99.9);
  EXPECT_EQ(objective->limit, milliseconds(5));
  EXPECT_EQ(objective->ToString(), "p99.9 <= 5ms");
  for (const char* wrong :
       {"", "99=5ms", "p99", "p0=5ms", "p101=5ms", "p99=0s", "p99=5", "pxx=1s", "p99=inf"}) {
    EXPECT_THAT(std::string(ParseObjective(wrong).status().message()), HasSubstr("such as p99=5ms"))
        << wrong;
  }
}

TEST(ObjectiveTest, IsMetWhenThePercentileIsWithinTheLimit) {
  const LoadResult result = Answers(100);
  const ObjectiveResult met = Judge({90, milliseconds(91)}, result, 0);
  EXPECT_TRUE(met.met);
  EXPECT_NEAR(static_cast<double>(met.reached.count()), 90e6, 90e3);
  EXPECT_FALSE(Judge({90, milliseconds(89)}, result, 0).met);
}

TEST(ObjectiveTest, GoodputCountsResponsesWithinTheLimitOnly) {
  LoadResult result = Answers(100);
  result.measured.codes[8] = 50;
  result.unsent = 50;
  const ObjectiveResult judged = Judge({99, milliseconds(40)}, result, 1);
  EXPECT_EQ(judged.within, 40);
  EXPECT_DOUBLE_EQ(judged.Goodput(result), 4);
  EXPECT_DOUBLE_EQ(judged.WithinShare(result), 0.2);
}

TEST(ObjectiveTest, ErrorsAndABacklogMissIt) {
  LoadResult errors = Answers(99);
  errors.measured.codes[14] = 1;
  EXPECT_FALSE(Judge({99, seconds(1)}, errors, 0).met);
  EXPECT_TRUE(Judge({99, seconds(1)}, errors, 0.01).met);
  LoadResult behind = Answers(100);
  behind.unsent = 1;
  EXPECT_FALSE(Judge({99, seconds(1)}, behind, 0).met);
  EXPECT_FALSE(Judge({99, seconds(1)}, LoadResult(), 0).met);
}

TimePoint AtSecond(int s) { return TimePoint(seconds(s)); }

TEST(StopRuleTest, WarmsUpThenMeasuresThenStops) {
  StopOptions options;
  options.warmup = seconds(2);
  options.duration = seconds(3);
  StopRule rule(options, AtSecond(10));
  EXPECT_EQ(rule.Admit(AtSecond(10)), Decision::kWarmup);
  EXPECT_EQ(rule.Admit(AtSecond(12) - Duration{1}), Decision::kWarmup);
  EXPECT_EQ(rule.Admit(AtSecond(12)), Decision::kMeasure);
  EXPECT_EQ(rule.Admit(AtSecond(15) - Duration{1}), Decision::kMeasure);
  EXPECT_EQ(rule.Admit(AtSecond(15)), Decision::kStop);
  EXPECT_EQ(rule.reason(), StopReason::kDuration);
  EXPECT_EQ(rule.Admit(AtSecond(12)), Decision::kStop);
}

TEST(StopRuleTest, CountsMeasuredRequestsOnly) {
  StopOptions options;
  options.warmup = seconds(1);
  options.requests = 2;
  StopRule rule(options, AtSecond(0));
  EXPECT_EQ(rule.Admit(AtSecond(0)), Decision::kWarmup);
  EXPECT_EQ(rule.Admit(AtSecond(1)), Decision::kMeasure);
  EXPECT_EQ(rule.Admit(AtSecond(1)), Decision::kMeasure);
  EXPECT_EQ(rule.Admit(AtSecond(1)), Decision::kStop);
  EXPECT_EQ(rule.reason(), StopReason::kRequests);
  EXPECT_EQ(rule.end(), kNever);
}

TEST(StopRuleTest, GivesUpAfterUnavailableInARow) {
  StopOptions options;
  options.unavailable_in_a_row = 3;
  StopRule rule(options, AtSecond(0));
  for (const absl::StatusCode code :
       {absl::StatusCode::kUnavailable, absl::StatusCode::kUnavailable, absl::StatusCode::kOk,
        absl::StatusCode::kUnavailable, absl::StatusCode::kResourceExhausted,
        absl::StatusCode::kUnavailable, absl::StatusCode::kUnavailable}) {
    rule.Observe(code);
    EXPECT_FALSE(rule.stopped());
  }
  rule.Observe(absl::StatusCode::kUnavailable);
  EXPECT_EQ(rule.reason(), StopReason::kServerGone);
}

TEST(StopRuleTest, KeepsTheFirstReason) {
  StopRule rule(StopOptions(), AtSecond(0));
  rule.Stop(StopReason::kInterrupted);
  rule.Stop(StopReason::kDuration);
  EXPECT_EQ(rule.reason(), StopReason::kInterrupted);
}

}  // namespace
}  // namespace normd::load
