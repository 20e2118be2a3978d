#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/linear_norm.h"
#include "kernels/reference.h"
#include "tests/kernels/refusal.h"

namespace normd::norm {
namespace {

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
