#include "client/tensor/stream_order.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace normd::client {
namespace {

TensorSpec Spec(norm::DType dtype, const std::vector<std::int64_t>& shape) {
  return {"", dtype, Shape::Create(shape).value()};
}

TEST(StreamOrderTest, ASingleTensorIsAsItIs) {
  const TensorSpec specs[] = {Spec(norm::DType::kFloat32, {3, 5})};
  StreamOrder order(specs);
  for (const std::int64_t at : {0, 7, 14, 21}) {
    const StreamOrder::Run run = order.Next(7);
    EXPECT_EQ(run.tensor, 0U);
    EXPECT_EQ(run.offset, at);
    EXPECT_EQ(run.size, 7);
  }
}

// Every shape of up to three tensors, read in steps of every size, against the order by definition.
TEST(StreamOrderTest, SeveralComeByASampleOfEachInTurnInStepsOfAnySize) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 500; ++i) {
    const auto samples = static_cast<std::int64_t>(1 + random() % 4);
    std::vector<TensorSpec> specs;
    for (auto n = 2 + random() % 3; n > 0; --n) {
      const auto dtype = static_cast<norm::DType>(1 + random() % 4);
      specs.push_back(Spec(dtype, {samples, static_cast<std::int64_t>(random() % 5)}));
    }
    struct Byte {
      std::size_t tensor;
      std::int64_t offset;
    };
    std::vector<Byte> wanted;
    for (std::int64_t sample = 0; sample < samples; ++sample) {
      for (std::size_t t = 0; t < specs.size(); ++t) {
        const std::int64_t size = TensorBytes(specs[t].dtype, specs[t].shape).value() / samples;
        for (std::int64_t b = 0; b < size; ++b) wanted.push_back({t, sample * size + b});
      }
    }
    StreamOrder order(specs);
    for (std::size_t at = 0; at < wanted.size();) {
      const auto left = static_cast<std::int64_t>(wanted.size() - at);
      const std::int64_t most = std::min(left, static_cast<std::int64_t>(1 + random() % 40));
      const StreamOrder::Run run = order.Next(most);
      ASSERT_GT(run.size, 0);
      ASSERT_LE(run.size, most);
      for (std::int64_t b = 0; b < run.size; ++b, ++at) {
        ASSERT_EQ(run.tensor, wanted[at].tensor);
        ASSERT_EQ(run.offset + b, wanted[at].offset);
      }
    }
  }
}

// As a norm over several dimensions has them.
TEST(StreamOrderTest, ASampleIsWhatTheNumberOfSamplesMakesIt) {
  const TensorSpec specs[] = {Spec(norm::DType::kFloat32, {2, 3, 5}),
                              Spec(norm::DType::kFloat16, {2, 3, 5})};
  StreamOrder order(specs, 2);
  for (const std::int64_t sample : {0, 1}) {
    for (const std::size_t tensor : {0, 1}) {
      const StreamOrder::Run run = order.Next(1000);
      const std::int64_t size = tensor == 0 ? 60 : 30;
      EXPECT_EQ(run.tensor, tensor);
      EXPECT_EQ(run.offset, sample * size);
      EXPECT_EQ(run.size, size);
    }
  }
}

TEST(SplitStreamTest, RefusesAnotherNumberOfBytes) {
  const TensorSpec specs[] = {Spec(norm::DType::kFloat32, {2, 2}),
                              Spec(norm::DType::kFloat64, {2, 1})};
  const std::vector<std::byte> stream(33);
  EXPECT_TRUE(SplitStream(specs, absl::MakeConstSpan(stream).first(32)).ok());
  EXPECT_EQ(SplitStream(specs, stream).status(),
            absl::InvalidArgumentError("stream: 33 bytes, wanted 32"));
}

}  // namespace
}  // namespace normd::client
