#include "client/load/workload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

namespace normd::load {
namespace {

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

}  // namespace
}  // namespace normd::load
