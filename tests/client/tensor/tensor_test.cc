#include "client/tensor/tensor.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

#include "client/tensor/random.h"
#include "client/tensor/stream_order.h"
#include "kernels/reference.h"

namespace normd::client {
namespace {

TEST(ParseDTypeTest, KnowsLongAndShortNames) {
  EXPECT_EQ(ParseDType("float32").value(), norm::DType::kFloat32);
  EXPECT_EQ(ParseDType("f64").value(), norm::DType::kFloat64);
  EXPECT_EQ(ParseDType("f16").value(), norm::DType::kFloat16);
  EXPECT_EQ(ParseDType("bfloat16").value(), norm::DType::kBFloat16);
  for (const char* name : {"", "int8", "Float32", "float"}) EXPECT_FALSE(ParseDType(name).ok());
}

TEST(ParseShapeTest, TakesBothSeparators) {
  EXPECT_EQ(ParseShape("2x64x512x512")->ToString(), "[2, 64, 512, 512]");
  EXPECT_EQ(ParseShape("2,64")->ToString(), "[2, 64]");
  EXPECT_EQ(ParseShape("7")->ToString(), "[7]");
  EXPECT_EQ(ParseShape("0x3")->ToString(), "[0, 3]");
  for (const char* text :
       {"", "x", "1xx2", "1x-2", "a", "1.5", "99999999999999999999", "4611686018427387904x4"}) {
    EXPECT_FALSE(ParseShape(text).ok()) << text;
  }
}

TEST(TensorTest, IsAlignedAndSharedByItsOwners) {
  Tensor tensor = Tensor::Allocate(norm::DType::kFloat16, Shape::Create({3, 5}).value()).value();
  EXPECT_EQ(tensor.bytes().size(), 30u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.bytes().data()) % 64, 0u);
  const std::shared_ptr<const void> owner = tensor.owner();
  const absl::Span<const std::byte> bytes = tensor.bytes();
  tensor.mutable_bytes()[29] = std::byte{7};
  tensor = Tensor();
  EXPECT_EQ(bytes[29], std::byte{7});
}

TEST(TensorTest, RefusesMoreThanThereIs) {
  const auto allocate = [](std::int64_t dim) {
    return Tensor::Allocate(norm::DType::kFloat64, Shape::Create({dim}).value()).status().code();
  };
  EXPECT_EQ(allocate(std::int64_t{1} << 61), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(allocate(std::int64_t{1} << 58), absl::StatusCode::kResourceExhausted);
}

// The first outputs for the seed 1234567, from the authors' reference implementation.
TEST(SplitMix64Test, GivesThePublishedSequence) {
  SplitMix64 random(1234567);
  EXPECT_EQ(random.Next(), 6457827717110365317u);
  EXPECT_EQ(random.Next(), 3203168211198807973u);
  EXPECT_EQ(random.Next(), 9817491932198370423u);
}

TEST(RandomTensorTest, IsWithinItsRangeAndFillsIt) {
  for (const norm::DType dtype : {norm::DType::kFloat32, norm::DType::kFloat64,
                                  norm::DType::kFloat16, norm::DType::kBFloat16}) {
    const Tensor tensor = RandomTensor(dtype, Shape::Create({10, 100}).value(), -2, 6, 3).value();
    double sum = 0;
    for (std::int64_t i = 0; i < 1000; ++i) {
      const double value = norm::LoadElement(dtype, tensor.bytes().data(), i);
      EXPECT_GE(value, -2);
      EXPECT_LE(value, 6);
      sum += value;
    }
    EXPECT_NEAR(sum / 1000, 2, 0.3);
  }
}

TEST(RandomTensorTest, DependsOnTheSeedAlone) {
  const Shape shape = Shape::Create({64}).value();
  const auto make = [&](std::uint64_t seed) {
    return RandomTensor(norm::DType::kFloat32, shape, 0, 1, seed).value();
  };
  EXPECT_EQ(make(1).bytes(), make(1).bytes());
  EXPECT_NE(make(1).bytes(), make(2).bytes());
}

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
