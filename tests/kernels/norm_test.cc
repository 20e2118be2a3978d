#include "kernels/norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kernels/linear_norm.h"
#include "kernels/reference.h"
#include "tests/kernels/refusal.h"

namespace normd::norm {
namespace {

constexpr float kOnes[4] = {1, 1, 1, 1};

TEST(ValidateSpecTest, AcceptsEveryOperation) {
  EXPECT_TRUE(ValidateSpec(InstanceNormSpec(3, DType::kFloat32), {}).ok());
  EXPECT_TRUE(ValidateSpec(GroupNormSpec(6, 3, DType::kFloat64), {}).ok());
  EXPECT_TRUE(ValidateSpec(LayerNormSpec(5, DType::kFloat16), {}).ok());
  EXPECT_TRUE(ValidateSpec(RmsNormSpec(5, DType::kBFloat16), {}).ok());
  NormParams given;
  given.mean = kPresent;
  given.variance = kPresent;
  EXPECT_TRUE(ValidateSpec(BatchNormSpec(4, DType::kFloat32), given).ok());
}

TEST(ValidateSpecTest, RefusesCountsThatAreNotPositiveOrDoNotDivide) {
  ExpectInvalid(ValidateSpec(InstanceNormSpec(0, DType::kFloat32), {}), "channels");
  ExpectInvalid(ValidateSpec(LayerNormSpec(-4, DType::kFloat32), {}), "channels");
  ExpectInvalid(ValidateSpec(GroupNormSpec(6, 0, DType::kFloat32), {}), "groups");
  ExpectInvalid(ValidateSpec(GroupNormSpec(6, -2, DType::kFloat32), {}), "groups");
  ExpectInvalid(ValidateSpec(GroupNormSpec(6, 4, DType::kFloat32), {}), "groups");
  ExpectInvalid(ValidateSpec(GroupNormSpec(6, 12, DType::kFloat32), {}), "groups");
}

TEST(ValidateSpecTest, RefusesEpsThatIsNotFiniteOrNegative) {
  for (const double eps : {-1e-5, std::nan(""), std::numeric_limits<double>::infinity()}) {
    NormSpec spec = InstanceNormSpec(3, DType::kFloat32);
    spec.eps = eps;
    ExpectInvalid(ValidateSpec(spec, {}), "eps");
  }
}

TEST(ValidateSpecTest, RefusesValuesOutsideTheEnums) {
  NormSpec spec = InstanceNormSpec(3, static_cast<DType>(9));
  ExpectInvalid(ValidateSpec(spec, {}), "dtype");
  spec = InstanceNormSpec(3, DType::kFloat32);
  spec.statistics = static_cast<Statistics>(6);
  ExpectInvalid(ValidateSpec(spec, {}), "statistics");
  spec = InstanceNormSpec(3, DType::kFloat32);
  spec.layout = static_cast<Layout>(3);
  ExpectInvalid(ValidateSpec(spec, {}), "layout");
  spec = InstanceNormSpec(3, DType::kFloat32);
  spec.activation = static_cast<Activation>(6);
  ExpectInvalid(ValidateSpec(spec, {}), "activation");
}

TEST(ValidateSpecTest, WantsMeanAndVarianceExactlyIfStatisticsAreGiven) {
  NormParams mean_only;
  mean_only.mean = kPresent;
  ExpectInvalid(ValidateSpec(BatchNormSpec(4, DType::kFloat32), {}), "mean and variance");
  ExpectInvalid(ValidateSpec(BatchNormSpec(4, DType::kFloat32), mean_only), "mean and variance");
  ExpectInvalid(ValidateSpec(InstanceNormSpec(4, DType::kFloat32), mean_only), "mean and variance");
}

TEST(ValidateSpecTest, RefusesParametersOfNoTypeOrAlignment) {
  NormParams params;
  params.gamma = {kOnes, static_cast<DType>(0)};
  ExpectInvalid(ValidateSpec(InstanceNormSpec(2, DType::kFloat32), params), "gamma");
  params.gamma = {};
  params.beta = {reinterpret_cast<const char*>(kOnes) + 2, DType::kFloat32};
  ExpectInvalid(ValidateSpec(InstanceNormSpec(2, DType::kFloat32), params), "beta");
}

TEST(ValidateSegmentsTest, AcceptsEmptySegmentsWithoutPointers) {
  const NormSpec spec = InstanceNormSpec(3, DType::kFloat32);
  const Segment segments[] = {{nullptr, nullptr, 0, 5}, {nullptr, nullptr, 5, 0}};
  EXPECT_TRUE(ValidateSegments(spec, segments, 2).ok());
  EXPECT_TRUE(ValidateSegments(spec, nullptr, 0).ok());
}

TEST(ValidateSegmentsTest, NamesTheSegmentThatIsWrong) {
  const NormSpec spec = InstanceNormSpec(2, DType::kFloat32);
  float x[4] = {};
  const Segment good{x, x, 1, 2};
  const auto status_of = [&](const Segment& second) {
    const Segment segments[] = {good, second};
    return ValidateSegments(spec, segments, 2);
  };
  EXPECT_TRUE(status_of(good).ok());
  ExpectInvalid(status_of({x, x, -1, 2}), "segments[1].samples");
  ExpectInvalid(status_of({x, x, 1, -2}), "segments[1].spatial");
  ExpectInvalid(status_of({nullptr, x, 1, 2}), "segments[1].x");
  ExpectInvalid(status_of({x, nullptr, 1, 2}), "segments[1].y");
  const Segment odd{reinterpret_cast<char*>(x) + 1, x, 1, 2};
  ExpectInvalid(status_of(odd), "segments[1].x: not aligned");
  EXPECT_TRUE(ValidateSegments(spec, &odd, 1, InputAlignment::kByte).ok());
  const Segment odd_output{x, reinterpret_cast<char*>(x) + 1, 1, 2};
  ExpectInvalid(ValidateSegments(spec, &odd_output, 1, InputAlignment::kByte), "segments[0].y");
}

TEST(ValidateSegmentsTest, WantsTheResidualsThatTheSpecSays) {
  NormSpec spec = RmsNormSpec(4, DType::kFloat32);
  float x[4] = {};
  float residual[4] = {};
  char* const odd = reinterpret_cast<char*>(residual) + 1;
  const auto status_of = [&](const Segment& segment) {
    return ValidateSegments(spec, &segment, 1, InputAlignment::kByte);
  };
  ExpectInvalid(status_of({x, x, 1, 1, residual}), "segments[0].residual: set");
  ExpectInvalid(status_of({x, x, 1, 1, nullptr, residual}), "segments[0].residual_out: set");
  spec.residual_out = true;
  ExpectInvalid(ValidateSpec(spec, {}), "residual_out: set without residual");
  spec.residual = true;
  EXPECT_TRUE(ValidateSpec(spec, {}).ok());
  EXPECT_TRUE(status_of({x, x, 1, 1, residual, residual}).ok());
  ExpectInvalid(status_of({x, x, 1, 1, nullptr, residual}), "segments[0].residual: null");
  ExpectInvalid(status_of({x, x, 1, 1, residual, nullptr}), "segments[0].residual_out: null");
  EXPECT_TRUE(status_of({x, x, 1, 1, odd, residual}).ok());
  ExpectInvalid(status_of({x, x, 1, 1, residual, odd}), "segments[0].residual_out: not aligned");
  spec.residual_out = false;
  ExpectInvalid(status_of({x, x, 1, 1, residual, residual}), "segments[0].residual_out: set");
}

TEST(ValidateSegmentsTest, ChecksASegmentsOwnParameters) {
  NormSpec spec = BatchNormSpec(2, DType::kFloat32);
  const float ones[2] = {1, 1};
  float x[4] = {};
  NormParams own;
  Segment segment{x, x, 1, 2};
  segment.params = &own;
  ExpectInvalid(ValidateSegments(spec, &segment, 1), "segments[0].params: mean and variance");
  own.mean.data = own.variance.data = ones;
  EXPECT_TRUE(ValidateSegments(spec, &segment, 1).ok());
  own.gamma = {ones, static_cast<DType>(9)};
  ExpectInvalid(ValidateSegments(spec, &segment, 1), "segments[0].params: gamma: dtype 9");
}

TEST(ValidateSegmentsTest, RefusesPitchesAtWhichSamplesOverlap) {
  const NormSpec spec = InstanceNormSpec(2, DType::kFloat32);
  float x[4] = {};
  for (std::int64_t Segment::*const pitch : {&Segment::x_pitch, &Segment::y_pitch}) {
    const std::string field =
        pitch == &Segment::x_pitch ? "segments[0].x_pitch" : "segments[0].y_pitch";
    for (const std::int64_t samples : {1, 3}) {
      Segment segment{x, x, samples, 5};
      for (const std::int64_t bad :
           {std::int64_t{-1}, std::int64_t{1}, std::int64_t{9}, -kMax - 1}) {
        segment.*pitch = bad;
        ExpectInvalid(
            ValidateSegments(spec, &segment, 1),
            field + ": " + std::to_string(bad) + ", wanted 0 or at least the 10 elements");
      }
      for (const std::int64_t good : {0, 10, 11}) {
        segment.*pitch = good;
        EXPECT_TRUE(ValidateSegments(spec, &segment, 1).ok());
      }
    }
  }
}

TEST(ValidateSegmentsTest, RefusesPitchesBeyond63Bits) {
  const NormSpec spec = InstanceNormSpec(2, DType::kFloat32);
  float x[4] = {};
  // The last of 2^61 - 1 elements, which have four bytes each, ends the third sample.
  constexpr std::int64_t kMost = ((std::int64_t{1} << 61) - 1 - 10) / 2;
  for (std::int64_t Segment::*const pitch : {&Segment::x_pitch, &Segment::y_pitch}) {
    Segment segment{x, x, 3, 5};
    segment.*pitch = kMost;
    EXPECT_TRUE(ValidateSegments(spec, &segment, 1).ok());
    segment.*pitch = kMost + 1;
    ExpectInvalid(ValidateSegments(spec, &segment, 1), pitch == &Segment::x_pitch
                                                           ? "segments[0].x_pitch: bytes overflow"
                                                           : "segments[0].y_pitch: bytes overflow");
    segment.samples = 1;
    EXPECT_TRUE(ValidateSegments(spec, &segment, 1).ok());
  }
}

TEST(ValidateSegmentsTest, RefusesBytesBeyond63Bits) {
  const NormSpec spec = InstanceNormSpec(4, DType::kFloat32);
  float x[4] = {};
  // 2^58 * 2 * 4 channels * 4 bytes is 2^63, one too many.
  const Segment segment{x, x, std::int64_t{1} << 58, 2};
  ExpectInvalid(ValidateSegments(spec, &segment, 1), "segments[0].samples");
  const Segment larger{x, x, std::int64_t{1} << 62, std::int64_t{1} << 62};
  ExpectInvalid(ValidateSegments(spec, &larger, 1), "segments[0].samples");
}

constexpr float kWeight[] = {1, 0, 0, 1, 1, 1, 2, -1};
constexpr float kBias[] = {0, 0, 1, 0};

LinearNormSpec SmallSpec() {
  LinearNormSpec spec;
  spec.in_features = 2;
  spec.out_features = 4;
  spec.eps = 0;
  return spec;
}

LinearNormParams SmallParams() {
  LinearNormParams params;
  params.weight.data = kWeight;
  params.bias.data = kBias;
  return params;
}

TEST(ValidateLinearNormTest, NamesWhatIsWrong) {
  EXPECT_TRUE(ValidateLinearNorm(SmallSpec(), SmallParams()).ok());
  const auto refused = [](const char* field, auto change) {
    LinearNormSpec spec = SmallSpec();
    change(spec);
    ExpectInvalid(ValidateLinearNorm(spec, SmallParams()), field);
  };
  refused("in_features", [](auto& spec) { spec.in_features = 0; });
  refused("out_features", [](auto& spec) { spec.out_features = -1; });
  refused("in_features, out_features", [](auto& spec) {
    spec.in_features = spec.out_features = std::int64_t{1} << 30;
    spec.in_features <<= 1;
  });
  refused("dtype", [](auto& spec) { spec.dtype = DType::kFloat64; });
  refused("dtype", [](auto& spec) { spec.dtype = static_cast<DType>(9); });
  refused("eps", [](auto& spec) { spec.eps = -1; });
  refused("precision", [](auto& spec) { spec.precision = static_cast<Precision>(4); });
  refused("activation", [](auto& spec) { spec.epilogue.activation = static_cast<Activation>(6); });
  LinearNormParams params = SmallParams();
  params.bias.dtype = static_cast<DType>(7);
  ExpectInvalid(ValidateLinearNorm(SmallSpec(), params), "bias");
  params.weight.data = nullptr;
  ExpectInvalid(ValidateLinearNorm(SmallSpec(), params), "weight");
}

TEST(ValidateLinearNormSegmentsTest, NamesWhatIsWrong) {
  LinearNormSpec spec = SmallSpec();
  spec.epilogue.add = true;
  float memory[16] = {};
  const LinearNormSegment good{memory, memory + 4, memory + 8, 2};
  const LinearNormSegment empty{};
  EXPECT_TRUE(ValidateLinearNormSegments(spec, &good, 1).ok());
  EXPECT_TRUE(ValidateLinearNormSegments(spec, &empty, 1).ok());
  const auto refused = [&](const char* field, auto change) {
    LinearNormSegment segments[] = {empty, good};
    change(segments[1]);
    ExpectInvalid(ValidateLinearNormSegments(spec, segments, 2),
                  std::string("segments[1].") + field);
  };
  refused("samples", [](auto& segment) { segment.samples = -2; });
  refused("samples", [](auto& segment) { segment.samples = std::int64_t{1} << 60; });
  refused("x", [](auto& segment) { segment.x = nullptr; });
  refused("y", [](auto& segment) { segment.y = nullptr; });
  refused("out", [](auto& segment) { segment.out = nullptr; });
  refused("out", [](auto& segment) { segment.out = static_cast<char*>(segment.out) + 2; });
  spec.epilogue = {};
  refused("y", [](auto&) {});
}

TEST(LinearNormReferenceTest, ComputesASampleByHand) {
  // z = {1, 3, 1 + 3 + 1, 2 - 3} = {1, 3, 5, -1}: mean 2, variance 5.
  const float x[] = {1, 3};
  const float y[] = {1, 2, 0, -1};
  LinearNormSpec spec = SmallSpec();
  std::vector<double> out(4);
  ASSERT_TRUE(LinearNormReference(spec, SmallParams(), {x, nullptr, nullptr, 1}, out.data()).ok());
  const double rstd = 1 / std::sqrt(5.0);
  const double n[] = {-rstd, rstd, 3 * rstd, -3 * rstd};
  for (std::size_t i = 0; i < 4; ++i) EXPECT_DOUBLE_EQ(out[i], n[i]) << i;

  spec.epilogue.add = spec.epilogue.multiply = true;
  spec.epilogue.activation = Activation::kRelu;
  ASSERT_TRUE(LinearNormReference(spec, SmallParams(), {x, y, nullptr, 1}, out.data()).ok());
  for (std::size_t i = 0; i < 4; ++i) {
    const double want = (n[i] + static_cast<double>(y[i])) * static_cast<double>(y[i]);
    EXPECT_DOUBLE_EQ(out[i], std::max(want, 0.0)) << i;
  }
}

}  // namespace
}  // namespace normd::norm
