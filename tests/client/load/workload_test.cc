#include "client/load/workload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "client/load/arrivals.h"
#include "client/load/rate_profile.h"

namespace normd::load {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

TEST(ParseMixTest, ReadsEntriesWithTheirDefaults) {
  const auto mix = ParseMix("a:2x64x56x56:f16:3,b:1x8");
  ASSERT_TRUE(mix.ok()) << mix.status();
  ASSERT_EQ(mix->size(), 2u);
  EXPECT_EQ((*mix)[0].ToString(), "a:2x64x56x56:float16");
  EXPECT_EQ((*mix)[0].weight, 3);
  EXPECT_EQ((*mix)[1].ToString(), "b:1x8:float32");
  EXPECT_EQ((*mix)[1].weight, 1);
}

TEST(ParseMixTest, ReadsPriorities) {
  const auto mix = ParseMix("a:1x8:priority=high:queue_timeout=5ms,b:1x8:f16:2:priority=low,c:1");
  ASSERT_TRUE(mix.ok()) << mix.status();
  EXPECT_EQ((*mix)[0].priority, Priority::kHigh);
  EXPECT_EQ((*mix)[0].queue_timeout, std::chrono::milliseconds(5));
  EXPECT_EQ((*mix)[0].ToString(), "a:1x8:float32:priority=high:queue_timeout=5ms");
  EXPECT_EQ((*mix)[1].priority, Priority::kLow);
  EXPECT_EQ((*mix)[2].priority, Priority::kUnspecified);
}

TEST(ParseMixTest, ReadsDeadlines) {
  const auto mix = ParseMix("a:1x8:f32:2:timeout=20ms,b:1x8:timeout=1s,c:1x8");
  ASSERT_TRUE(mix.ok()) << mix.status();
  EXPECT_EQ((*mix)[0].timeout, std::chrono::milliseconds(20));
  EXPECT_EQ((*mix)[0].weight, 2);
  EXPECT_EQ((*mix)[1].timeout, std::chrono::seconds(1));
  EXPECT_EQ((*mix)[1].ToString(), "b:1x8:float32:timeout=1s");
  EXPECT_EQ((*mix)[2].timeout, std::nullopt);
}

TEST(ParseMixTest, ReadsTheShapeOfASecondInput) {
  const auto mix = ParseMix("a:4x8:f16:y=4x512:timeout=1s,b:4x8");
  ASSERT_TRUE(mix.ok()) << mix.status();
  EXPECT_EQ((*mix)[0].ToString(), "a:4x8:float16:y=4x512:timeout=1s");
  EXPECT_EQ((*mix)[1].inputs.size(), 1U);
  const auto workload = Workload::Create(*mix, 1);
  ASSERT_TRUE(workload.ok()) << workload.status();
  EXPECT_EQ(workload->items()[0].inputs[1].bytes().size(), 4u * 512 * 2);
  EXPECT_EQ(workload->items()[0].inputs[1].dtype(), norm::DType::kFloat16);
  EXPECT_EQ(workload->items()[1].inputs.size(), 1U);
}

TEST(ParseMixTest, ReadsTheShapesOfAnyNumberOfNamedInputs) {
  const auto mix = ParseMix("a:4x8:gate=4x8:residual=4x16:scale=8,b:x=2x8");
  ASSERT_TRUE(mix.ok()) << mix.status();
  const auto workload = Workload::Create(*mix, 1);
  ASSERT_TRUE(workload.ok()) << workload.status();
  const std::vector<client::NamedTensor> inputs = workload->items()[0].NamedInputs();
  std::map<std::string, std::string> shapes;
  for (const client::NamedTensor& input : inputs) {
    shapes[input.name] = input.tensor.shape.ToString();
    for (const client::NamedTensor& other : inputs) {
      if (other.name == input.name || other.tensor.bytes.size() != input.tensor.bytes.size())
        continue;
      EXPECT_NE(other.tensor.bytes, input.tensor.bytes) << input.name << " " << other.name;
    }
  }
  const std::map<std::string, std::string> wanted = {
      {"x", "[4, 8]"}, {"gate", "[4, 8]"}, {"residual", "[4, 16]"}, {"scale", "[8]"}};
  EXPECT_EQ(shapes, wanted);
  EXPECT_EQ(workload->items()[0].input_bytes(), 4 * (32 + 32 + 64 + 8));
  // What the text says is parsed to the same.
  EXPECT_EQ(ParseMix((*mix)[0].ToString())->front().ToString(), (*mix)[0].ToString());
  EXPECT_FALSE((*mix)[1].shape_from_model);
  EXPECT_EQ(workload->items()[1].inputs.size(), 1U);
  EXPECT_EQ(workload->items()[1].inputs[0].shape().ToString(), "[2, 8]");
}

TEST(ParseMixTest, AShapeMayBeLeftToTheModel) {
  const auto mix = ParseMix("a,b::f16:3,c:priority=low,d:1x8");
  ASSERT_TRUE(mix.ok()) << mix.status();
  EXPECT_TRUE((*mix)[0].shape_from_model);
  EXPECT_TRUE((*mix)[1].shape_from_model);
  EXPECT_EQ((*mix)[1].dtype, norm::DType::kFloat16);
  EXPECT_EQ((*mix)[1].weight, 3);
  EXPECT_TRUE((*mix)[2].shape_from_model);
  EXPECT_FALSE((*mix)[3].shape_from_model);
}

TEST(ParseMixTest, AnEmptyFieldIsItsDefault) {
  const auto mix = ParseMix("a:::2,b:1x8:f16::priority=low");
  ASSERT_TRUE(mix.ok()) << mix.status();
  EXPECT_TRUE((*mix)[0].shape_from_model);
  EXPECT_EQ((*mix)[0].dtype, norm::DType::kFloat32);
  EXPECT_EQ((*mix)[0].weight, 2);
  EXPECT_EQ((*mix)[1].dtype, norm::DType::kFloat16);
  EXPECT_EQ((*mix)[1].weight, 1);
}

TEST(ParseMixTest, ReadsStreams) {
  const auto mix =
      ParseMix("a:1x8:stream,b:1x8:f16:2:stream=256KiB:timeout=1s,c:1x8:stream=1000,d:1");
  ASSERT_TRUE(mix.ok()) << mix.status();
  EXPECT_EQ((*mix)[0].stream_chunk_bytes, 1 << 20);
  EXPECT_EQ((*mix)[0].ToString(), "a:1x8:float32:stream=1MiB");
  EXPECT_EQ((*mix)[1].stream_chunk_bytes, 256 << 10);
  EXPECT_EQ((*mix)[1].ToString(), "b:1x8:float16:timeout=1s:stream=256KiB");
  EXPECT_EQ((*mix)[2].ToString(), "c:1x8:float32:stream=1000");
  EXPECT_FALSE((*mix)[3].streamed());
}

TEST(ParseMixTest, ReadsOutputsAndStreamsOfSeveralInputs) {
  const auto mix = ParseMix("a:4x8:y=4x8:stream:outputs=y+mean,b:1x8");
  ASSERT_TRUE(mix.ok()) << mix.status();
  EXPECT_EQ((*mix)[0].outputs, (std::vector<std::string>{"y", "mean"}));
  EXPECT_EQ((*mix)[0].inputs.size(), 2U);
  EXPECT_EQ((*mix)[0].ToString(), "a:4x8:float32:y=4x8:outputs=y+mean:stream=1MiB");
  EXPECT_TRUE((*mix)[1].outputs.empty());
}

TEST(ParseMixTest, NamesWhatIsWrong) {
  const auto message = [](const char* text) {
    return std::string(ParseMix(text).status().message());
  };
  EXPECT_THAT(message(""), HasSubstr("mix: \"\": no model"));
  EXPECT_THAT(message(":1x2"), HasSubstr("no model"));
  EXPECT_THAT(message("a:1xtwo"), HasSubstr("1xtwo"));
  EXPECT_THAT(message("a:-1"), HasSubstr("wanted 0 or more"));
  EXPECT_THAT(message("a:1:int8"), HasSubstr("int8"));
  EXPECT_THAT(message("a:1:f32:0"), HasSubstr("weight"));
  EXPECT_THAT(message("a:1:f32:inf"), HasSubstr("weight"));
  EXPECT_THAT(message("a:1:f32:1:1"), HasSubstr("5 fields"));
  EXPECT_THAT(message("a:1:timeout=0s"), HasSubstr("timeout=0s is not a time above 0"));
  EXPECT_THAT(message("a:1:priority=urgent"), HasSubstr("priority=urgent is not low"));
  EXPECT_THAT(message("a:1:y=4xtwo"), HasSubstr("y=4xtwo"));
  EXPECT_THAT(message("a:1:colour=red"), HasSubstr("unknown option colour=red"));
  EXPECT_THAT(message("timeout=1s"), HasSubstr("0 fields"));
  EXPECT_THAT(message("stream"), HasSubstr("0 fields"));
  EXPECT_THAT(message("a:1:stream=0"), HasSubstr("stream=0 is not a size"));
  EXPECT_THAT(message("a:1:stream=1TB"), HasSubstr("stream=1TB is not a size"));
  EXPECT_THAT(message("a:1:stream=2000MiB"), HasSubstr("stream=2000MiB is not a size"));
  EXPECT_THAT(message("a:4x8:outputs="), HasSubstr("outputs= names no output"));
}

TEST(WorkloadTest, PicksByWeightAndSeed) {
  const auto workload = Workload::Create(ParseMix("a:1x4:f32:3,b:1x8:f32:1").value(), 1);
  ASSERT_TRUE(workload.ok());
  const auto picks = [&](std::uint64_t seed) {
    client::SplitMix64 random(seed);
    std::vector<std::size_t> picked;
    for (int i = 0; i < 20000; ++i) picked.push_back(workload->Pick(random).index);
    return picked;
  };
  const std::vector<std::size_t> picked = picks(1);
  // The standard deviation of the share is 0.3%.
  EXPECT_NEAR(static_cast<double>(std::count(picked.begin(), picked.end(), 0u)) / 20000, 0.75,
              0.015);
  EXPECT_EQ(picked, picks(1));
  EXPECT_NE(picked, picks(2));
}

TEST(WorkloadTest, MakesTheSameTensorsForTheSameSeed) {
  const auto mix = ParseMix("a:3x5,b:3x5").value();
  const auto one = Workload::Create(mix, 1);
  const auto same = Workload::Create(mix, 1);
  ASSERT_TRUE(one.ok() && same.ok());
  EXPECT_EQ(one->items()[0].inputs[0].bytes(), same->items()[0].inputs[0].bytes());
  EXPECT_NE(one->items()[0].inputs[0].bytes(), one->items()[1].inputs[0].bytes());
}

TEST(WorkloadTest, RefusesAnEmptyMixAndTensorsBeyondMemory) {
  EXPECT_FALSE(Workload::Create({}, 1).ok());
  EXPECT_FALSE(Workload::Create(ParseMix("a:4611686018427387904:f64").value(), 1).ok());
}

std::vector<Duration> Times(Arrivals& arrivals, int count) {
  std::vector<Duration> times;
  for (int i = 0; i < count; ++i) times.push_back(arrivals.Next().value());
  return times;
}

TEST(ConstantArrivalsTest, AreEvenlySpacedWithoutDrift) {
  const auto arrivals = ConstantArrivals(3000);
  const std::vector<Duration> times = Times(*arrivals, 30001);
  EXPECT_EQ(times[0], Duration{0});
  EXPECT_EQ(times[1], Duration{333333});
  EXPECT_EQ(times[30000], std::chrono::seconds(10));
}

TEST(PoissonArrivalsTest, HaveTheMeanAndSpreadOfTheirRate) {
  const auto arrivals = PoissonArrivals(1000, 1);
  const std::vector<Duration> times = Times(*arrivals, 200000);
  double sum = 0;
  double squares = 0;
  for (std::size_t i = 1; i < times.size(); ++i) {
    ASSERT_GE(times[i], times[i - 1]);
    const double gap = std::chrono::duration<double>(times[i] - times[i - 1]).count();
    sum += gap;
    squares += gap * gap;
  }
  const auto n = static_cast<double>(times.size() - 1);
  const double mean = sum / n;
  // The standard error of the mean is 0.22%.
  EXPECT_NEAR(mean, 1e-3, 1e-5);
  EXPECT_NEAR(std::sqrt(squares / n - mean * mean) / mean, 1.0, 0.02);
}

TEST(PoissonArrivalsTest, AreTheSameForTheSameSeed) {
  EXPECT_EQ(Times(*PoissonArrivals(50, 7), 100), Times(*PoissonArrivals(50, 7), 100));
  EXPECT_NE(Times(*PoissonArrivals(50, 7), 100), Times(*PoissonArrivals(50, 8), 100));
}

TEST(PoissonArrivalsTest, FollowTheirProfile) {
  const auto arrivals = PoissonArrivals(RateProfile::Parse("1000@10s,0..4000@10s").value(), 1);
  int first = 0;
  int second = 0;
  int third = 0;
  while (const std::optional<Duration> time = arrivals->Next()) {
    ++(*time < seconds(10) ? first : *time < seconds(15) ? second : third);
  }
  // 10000, 5000 and 15000 are wanted; the bounds are five standard deviations.
  EXPECT_NEAR(first, 10000, 500);
  EXPECT_NEAR(second, 5000, 354);
  EXPECT_NEAR(third, 15000, 612);
}

TEST(MakeArrivalsTest, RefusesUnknownKinds) {
  EXPECT_TRUE(MakeArrivals("constant", RateProfile::Constant(1), 1).ok());
  EXPECT_TRUE(MakeArrivals("poisson", RateProfile::Constant(1), 1).ok());
  EXPECT_EQ(MakeArrivals("pareto", RateProfile::Constant(1), 1).status().message(),
            "arrival: \"pareto\", wanted constant or poisson");
}

TEST(TracedArrivalsTest, AreThoseOfTheTraceAndEnd) {
  const auto arrivals = TracedArrivals({Duration{0}, Duration{5}, Duration{5}});
  EXPECT_EQ(Times(*arrivals, 3), (std::vector<Duration>{Duration{0}, Duration{5}, Duration{5}}));
  EXPECT_EQ(arrivals->Next(), std::nullopt);
}

TEST(ParseTraceTest, ReadsOffsetsAndTimestamps) {
  EXPECT_EQ(
      ParseTrace("# seconds\n0\n\n 0.25  # a burst\r\n0.25\n1e1\n").value(),
      (std::vector<Duration>{Duration{0}, milliseconds(250), milliseconds(250), seconds(10)}));
  const auto stamps = ParseTrace("1732153500.5\n1732153501.0\n");
  ASSERT_TRUE(stamps.ok()) << stamps.status();
  EXPECT_EQ(*stamps, (std::vector<Duration>{Duration{0}, milliseconds(500)}));
}

TEST(ParseTraceTest, NamesTheLineThatIsWrong) {
  const auto message = [](const char* text) {
    return std::string(ParseTrace(text).status().message());
  };
  EXPECT_EQ(message("0\nsoon\n"), "line 2: \"soon\", wanted seconds");
  EXPECT_EQ(message("0\n2\n1\n"), "line 3: 1 is before the line above");
  EXPECT_EQ(message("nan"), "line 1: \"nan\", wanted seconds");
  EXPECT_EQ(message("0\ninf"), "line 2: \"inf\", wanted seconds");
  EXPECT_EQ(message("# nothing\n"), "no times, wanted one on each line");
}

RateProfile Parse(const char* text) { return RateProfile::Parse(text).value(); }

TEST(RateProfileTest, AStepAsksAtItsRateAndEnds) {
  const RateProfile profile = Parse("100@2s,50@2s");
  EXPECT_EQ(profile.TimeOf(0), Duration{0});
  EXPECT_EQ(profile.TimeOf(100), seconds(1));
  EXPECT_EQ(profile.TimeOf(200), seconds(2));
  EXPECT_EQ(profile.TimeOf(250), seconds(3));
  EXPECT_EQ(profile.TimeOf(299), milliseconds(3980));
  EXPECT_EQ(profile.TimeOf(300), std::nullopt);
}

TEST(RateProfileTest, ARampAsksForTheAreaUnderIt) {
  // After t seconds: 100 t + 50 t^2.
  const RateProfile up = Parse("100..300@2s");
  EXPECT_EQ(up.TimeOf(37.5 + 25), milliseconds(500));
  EXPECT_EQ(up.TimeOf(150), seconds(1));
  EXPECT_EQ(up.TimeOf(400), std::nullopt);
  // After t seconds: 300 t - 50 t^2.
  const RateProfile down = Parse("300..100@2s");
  EXPECT_EQ(down.TimeOf(250), seconds(1));
  // From nothing: 50 t^2; to nothing: 200 t - 50 t^2.
  EXPECT_EQ(Parse("0..200@2s").TimeOf(50), seconds(1));
  EXPECT_EQ(Parse("200..0@2s").TimeOf(150), seconds(1));
}

TEST(RateProfileTest, APauseAsksForNothing) {
  const RateProfile profile = Parse("10@1s,0@5s,10@1s");
  EXPECT_EQ(profile.TimeOf(9), milliseconds(900));
  EXPECT_EQ(profile.TimeOf(10), seconds(6));
  EXPECT_EQ(profile.TimeOf(19), milliseconds(6900));
}

TEST(RateProfileTest, AConstantRateNeverEnds) {
  EXPECT_EQ(RateProfile::Constant(4).TimeOf(1e6), seconds(250000));
}

TEST(RateProfileTest, LeadsAtItsFirstRate) {
  const RateProfile profile = Parse("10..20@10s").WithLead(seconds(2));
  EXPECT_EQ(profile.TimeOf(10), seconds(1));
  EXPECT_EQ(profile.TimeOf(20), seconds(2));
  ASSERT_EQ(profile.segments().size(), 2u);
  EXPECT_EQ(profile.segments()[0].end_rate_per_s, 10);
  EXPECT_EQ(Parse("10@1s").WithLead(Duration{0}).segments().size(), 1u);
}

TEST(RateProfileTest, NamesWhatIsWrong) {
  const auto message = [](const char* text) {
    return std::string(RateProfile::Parse(text).status().message());
  };
  EXPECT_THAT(message(""), HasSubstr("no rate"));
  EXPECT_THAT(message("10"), HasSubstr("\"10\" has no time"));
  EXPECT_THAT(message("10@1s,x@2s"), HasSubstr("\"x@2s\" has no rate"));
  EXPECT_THAT(message("10..@2s"), HasSubstr("no rate"));
  EXPECT_THAT(message("-1@2s"), HasSubstr("no rate"));
  EXPECT_THAT(message("inf@2s"), HasSubstr("no rate"));
  EXPECT_THAT(message("10@0s"), HasSubstr("no time above 0"));
  EXPECT_THAT(message("10@inf"), HasSubstr("no time"));
  EXPECT_THAT(message("0@10s"), HasSubstr("sends nothing"));
}

}  // namespace
}  // namespace normd::load
