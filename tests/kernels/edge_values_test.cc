// Every backend on data that breaks naive statistics: large means, outliers, constants, overflow,
// NaN and Inf.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/reference.h"
#include "tests/support/kernel_backend.h"
#include "tests/support/tensor.h"

namespace normd::norm::testing {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

class KernelEdgeValuesTest : public ::testing::TestWithParam<std::tuple<DType, Layout>> {
 protected:
  void SetUp() override {
    if (!backend_->Available()) GTEST_SKIP() << backend_->Name() << " is not available";
  }

  DType dtype() const { return std::get<0>(GetParam()); }
  bool channels_last() const { return std::get<1>(GetParam()) == Layout::kChannelsLast; }

  NormSpec WithLayout(NormSpec spec) const {
    spec.layout = std::get<1>(GetParam());
    return spec;
  }

  // Index of an element of a single sample.
  std::int64_t Index(const NormSpec& spec, std::int64_t spatial, std::int64_t channel,
                     std::int64_t position) const {
    return channels_last() ? position * spec.channels + channel : channel * spatial + position;
  }

  Tensor Normalize(const NormSpec& spec, const NormParams& params, const Tensor& x,
                   std::int64_t spatial) {
    Tensor y(spec.dtype, x.count());
    y.Poison();
    const Segment segment{x.data(), y.data(), x.count() / (spec.channels * spatial), spatial};
    const Status status = backend_->Normalize(spec, params, &segment, 1);
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(y.GuardsIntact());
    return y;
  }

  void ExpectLikeReference(const NormSpec& spec, const Tensor& x, std::int64_t spatial,
                           Tolerance tolerance) {
    const ParamSet params(spec, DType::kFloat32, TestSeed() + 10);
    const Segment segment{x.data(), nullptr, x.count() / (spec.channels * spatial), spatial};
    std::vector<double> expected(static_cast<std::size_t>(x.count()));
    ASSERT_TRUE(NormalizeReference(spec, params.View(), segment, expected.data()).ok());
    EXPECT_EQ(Compare(Normalize(spec, params.View(), x, spatial), expected, tolerance), "");
  }

  // As ExpectLikeReference, but on CUDA, where squares overflow, every element is a NaN.
  void ExpectLikeReferenceOrNaN(const NormSpec& spec, const Tensor& x, std::int64_t spatial) {
    if (backend_->Name() != "cuda") {
      return ExpectLikeReference(spec, x, spatial, TightTolerance(dtype()));
    }
    const Tensor y = Normalize(spec, {}, x, spatial);
    for (std::int64_t i = 0; i < y.count(); ++i) ASSERT_TRUE(std::isnan(y.Get(i))) << i;
  }

  // On data with trouble: the contract's own bound.
  Tolerance ContractTolerance() const {
    Tolerance tolerance = TightTolerance(dtype());
    if (dtype() == DType::kFloat32) tolerance = {1e-4, 1e-4, 0};
    if (dtype() == DType::kFloat64) tolerance = {1e-9, 1e-9, 0};
    return tolerance;
  }

  std::unique_ptr<KernelBackend> backend_ = MakeKernelBackend();
};

TEST_P(KernelEdgeValuesTest, KeepsItsAccuracyOnDataThatBreaksNaiveSums) {
  for (const Data data : {Data::kLargeMean, Data::kConstant, Data::kOutlier, Data::kHalfOverflow}) {
    SCOPED_TRACE(static_cast<int>(data));
    for (const std::int64_t spatial : {33, 1024, 70001}) {
      Tensor x(dtype(), 4 * spatial);
      x.Fill(data, TestSeed() + 11);
      for (const NormSpec& spec :
           {InstanceNormSpec(4, dtype()), GroupNormSpec(4, 2, dtype()), RmsNormSpec(4, dtype())}) {
        ExpectLikeReference(WithLayout(spec), x, spatial, ContractTolerance());
      }
    }
    Tensor x(dtype(), 2 * 5000);
    x.Fill(data, TestSeed() + 12);
    ExpectLikeReference(WithLayout(LayerNormSpec(5000, dtype())), x, 1, ContractTolerance());
    ExpectLikeReference(WithLayout(RmsNormSpec(5000, dtype())), x, 1, ContractTolerance());
  }
}

TEST_P(KernelEdgeValuesTest, KeepsItsAccuracyWhereARowBeginsUnlikeItGoesOn) {
  const NormSpec spec = WithLayout(InstanceNormSpec(3, dtype()));
  constexpr std::int64_t kSpatial = 40000;
  Tensor x(dtype(), 3 * kSpatial);
  x.Fill(Data::kNormal, TestSeed() + 13);
  for (std::int64_t channel = 0; channel < 3; ++channel) {
    for (std::int64_t i = 100; i < kSpatial; ++i) x.Set(Index(spec, kSpatial, channel, i), 7.7);
  }
  Tolerance tolerance = TightTolerance(dtype());
  // The reference adds 40000 numbers one by one.
  if (dtype() == DType::kFloat64) tolerance = {1e-10, 1e-10, 0};
  ExpectLikeReference(spec, x, kSpatial, tolerance);
}

TEST_P(KernelEdgeValuesTest, GivesBetaForAConstantRow) {
  for (const double value : {3.25, 0.1, 1.0 / 3, -3000.7, 1e-30}) {
    if (backend_->Name() == "cuda" && value != 3.25) continue;  // Sums of the others are not exact.
    for (const std::int64_t spatial : {3, 17, 600, 3000}) {
      for (NormSpec spec : {InstanceNormSpec(2, dtype()), GroupNormSpec(6, 3, dtype())}) {
        spec = WithLayout(spec);
        Tensor x(dtype(), spec.channels * spatial);
        for (std::int64_t i = 0; i < x.count(); ++i) x.Set(i, value);
        Tensor beta(DType::kFloat32, spec.channels);
        for (std::int64_t c = 0; c < spec.channels; ++c) beta.Set(c, c % 2 == 0 ? 0.5 : -2);
        NormParams params;
        params.beta = {beta.data(), beta.dtype()};
        const Tensor y = Normalize(spec, params, x, spatial);
        for (std::int64_t c = 0; c < spec.channels; ++c) {
          for (std::int64_t i = 0; i < spatial; ++i) {
            ASSERT_EQ(y.Get(Index(spec, spatial, c, i)), beta.Get(c)) << value << ", " << i;
          }
        }
      }
    }
  }
}

// docs/operations.md says these.
TEST_P(KernelEdgeValuesTest, GivesBetaForARowOfOneElement) {
  const NormSpec spec = WithLayout(InstanceNormSpec(3, dtype()));
  Tensor x(dtype(), 2 * 3);
  x.Fill(Data::kNormal, TestSeed() + 18);
  Tensor beta(DType::kFloat32, 3);
  for (std::int64_t c = 0; c < 3; ++c) beta.Set(c, 0.5 * static_cast<double>(c));
  NormParams params;
  params.beta = {beta.data(), beta.dtype()};
  const Tensor y = Normalize(spec, params, x, 1);
  for (std::int64_t i = 0; i < y.count(); ++i) ASSERT_EQ(y.Get(i), beta.Get(i % 3)) << i;
}

TEST_P(KernelEdgeValuesTest, GivesNaNForAConstantRowWithoutEps) {
  for (NormSpec spec : {InstanceNormSpec(2, dtype()), GroupNormSpec(4, 2, dtype()),
                        LayerNormSpec(6, dtype()), RmsNormSpec(6, dtype())}) {
    spec = WithLayout(spec);
    spec.eps = 0;
    for (const std::int64_t spatial : {1, 50}) {
      Tensor x(dtype(), spec.channels * spatial);
      for (std::int64_t i = 0; i < x.count(); ++i) {
        x.Set(i, spec.statistics == Statistics::kMeanSquare ? 0 : 3.25);
      }
      const Tensor y = Normalize(spec, {}, x, spatial);
      for (std::int64_t i = 0; i < y.count(); ++i) ASSERT_TRUE(std::isnan(y.Get(i))) << i;
    }
  }
}

TEST_P(KernelEdgeValuesTest, MultipliesByALeakySlopeOfItsOwnAccuracy) {
  NormSpec spec = WithLayout(BatchNormSpec(1, dtype()));
  spec.eps = 0;
  spec.activation = Activation::kLeakyRelu;
  spec.leaky_slope = 0.1;
  Tensor x(dtype(), 40);
  for (std::int64_t i = 0; i < x.count(); ++i) x.Set(i, -1 - 0.25 * static_cast<double>(i));
  const double zero = 0, one = 1;
  NormParams params;
  params.mean = {&zero, DType::kFloat64};
  params.variance = {&one, DType::kFloat64};
  const Tensor y = Normalize(spec, params, x, 40);
  for (std::int64_t i = 0; i < x.count(); ++i) {
    const double product = dtype() == DType::kFloat64
                               ? 0.1 * x.Get(i)
                               : static_cast<double>(0.1f * static_cast<float>(x.Get(i)));
    Tensor want(dtype(), 1);
    want.Set(0, product);
    ASSERT_EQ(y.Get(i), want.Get(0)) << i;
  }
}

// Types with float32's exponents and float32 accumulation.
class KernelOverflowTest : public KernelEdgeValuesTest {};

TEST_P(KernelOverflowTest, SurvivesSquaresBeyondTheAccumulationType) {
  const NormSpec spec = WithLayout(GroupNormSpec(6, 2, dtype()));
  Tensor x(dtype(), 6 * 900);
  x.Fill(Data::kNormal, TestSeed() + 14);
  for (std::int64_t i = 0; i < x.count(); ++i) x.Set(i, x.Get(i) * 1e25);
  ExpectLikeReferenceOrNaN(spec, x, 900);
}

TEST_P(KernelOverflowTest, SurvivesADifferenceFromTheMeanBeyondTheLargestNumber) {
  // The mean is -2.7e38, and the last element 3e38.
  for (const std::int64_t spatial : {20, 900, 40000}) {
    for (const NormSpec& plain : {InstanceNormSpec(2, dtype()), GroupNormSpec(4, 2, dtype())}) {
      NormSpec spec = WithLayout(plain);
      for (const Activation activation : {Activation::kNone, Activation::kSilu}) {
        spec.activation = activation;
        Tensor x(dtype(), 2 * spec.channels * spatial);
        x.Fill(Data::kUniform, TestSeed() + 19);
        for (std::int64_t i = 0; i < x.count(); ++i) {
          x.Set(i, i % 20 == 19 ? 3e38 : -3e38 + 1e37 * x.Get(i));
        }
        ExpectLikeReferenceOrNaN(spec, x, spatial);
      }
    }
  }
  Tensor x(dtype(), 3000);
  x.Fill(Data::kUniform, TestSeed() + 20);
  for (std::int64_t i = 0; i < x.count(); ++i) x.Set(i, i % 20 == 19 ? 3e38 : -3e38 * x.Get(i));
  ExpectLikeReferenceOrNaN(WithLayout(LayerNormSpec(1500, dtype())), x, 1);
}

// Where no type is left to compute in: float64, and on CUDA every type whose squares can overflow.
TEST_P(KernelEdgeValuesTest, SquaresThatOverflowMakeNaNOfDeviationsAndZerosOfAMeanSquare) {
  const bool wide = dtype() == DType::kFloat64;
  if (!wide && (backend_->Name() != "cuda" || dtype() == DType::kFloat16)) {
    GTEST_SKIP() << "computed";
  }
  const double magnitude = wide ? 1e300 : 1e25;
  for (const bool drawn : {true, false}) {
    for (const std::int64_t spatial : {3, 33, 1024, 9001, 70001, 300001}) {
      Tensor x(dtype(), 4 * spatial);
      x.Fill(Data::kNormal, TestSeed() + 21);
      for (std::int64_t i = 0; i < x.count(); ++i) {
        // Without a draw, signs that change along channels and positions.
        x.Set(i, magnitude * (drawn ? x.Get(i) : ((i ^ (i >> 2)) & 1) == 0 ? 1 : -1));
      }
      for (NormSpec spec : {InstanceNormSpec(4, dtype()), GroupNormSpec(4, 2, dtype()),
                            LayerNormSpec(4, dtype()), LayerNormSpec(4 * spatial, dtype())}) {
        spec = WithLayout(spec);
        const std::int64_t positions = spec.channels == 4 ? spatial : 1;
        const Tensor y = Normalize(spec, {}, x, positions);
        for (std::int64_t i = 0; i < y.count(); ++i) {
          ASSERT_TRUE(std::isnan(y.Get(i))) << i << " of " << y.count() << ", " << spec.groups;
        }
        spec.statistics = Statistics::kMeanSquare;
        const Tensor of_squares = Normalize(spec, {}, x, positions);
        for (std::int64_t i = 0; i < y.count(); ++i) {
          ASSERT_EQ(of_squares.Get(i), 0) << i << " of " << y.count() << ", " << spec.groups;
        }
      }
    }
  }
}

TEST_P(KernelEdgeValuesTest, ANotANumberSpoilsItsOwnRowAlone) {
  constexpr std::int64_t kSpatial = 1500;
  const NormSpec spec = WithLayout(GroupNormSpec(6, 3, dtype()));
  Tensor x(dtype(), 6 * kSpatial);
  x.Fill(Data::kNormal, TestSeed() + 15);
  const Tensor clean = Normalize(spec, {}, x, kSpatial);
  for (const double value : {kNaN, kInf, -kInf}) {
    SCOPED_TRACE(value);
    x.Set(Index(spec, kSpatial, 2, 700), value);
    const Tensor y = Normalize(spec, {}, x, kSpatial);
    for (std::int64_t channel = 0; channel < 6; ++channel) {
      for (std::int64_t i = 0; i < kSpatial; ++i) {
        const std::int64_t at = Index(spec, kSpatial, channel, i);
        if (channel / 2 == 1) {
          ASSERT_TRUE(std::isnan(y.Get(at))) << channel << " " << i;
        } else {
          ASSERT_EQ(y.Get(at), clean.Get(at)) << channel << " " << i;
        }
      }
    }
  }
}

TEST_P(KernelEdgeValuesTest, AnInfinityMakesTheRestOfAMeanSquareRowZero) {
  NormSpec spec = WithLayout(RmsNormSpec(600, dtype()));
  for (const std::int64_t spatial : {1, 7}) {
    Tensor x(dtype(), 600 * spatial);
    x.Fill(Data::kNormal, TestSeed() + 16);
    x.Set(77, kInf);
    const Tensor y = Normalize(spec, {}, x, spatial);
    for (std::int64_t i = 0; i < y.count(); ++i) {
      if (i == 77) {
        ASSERT_TRUE(std::isnan(y.Get(i)));
      } else {
        ASSERT_EQ(y.Get(i), 0) << i;
      }
    }
  }
}

TEST_P(KernelEdgeValuesTest, AnInfiniteGammaMakesInfinitiesOfItsChannelAlone) {
  constexpr std::int64_t kChannels = 6;
  Tensor gamma(DType::kFloat32, kChannels), beta(DType::kFloat32, kChannels);
  gamma.Fill(Data::kNormal, TestSeed() + 18);
  beta.Fill(Data::kNormal, TestSeed() + 19);
  gamma.Set(4, kInf);
  NormParams params;
  params.gamma = {gamma.data(), DType::kFloat32};
  for (const std::int64_t spatial : {1, 33, 1024, 70001}) {
    Tensor x(dtype(), kChannels * spatial);
    x.Fill(Data::kLargeMean, TestSeed() + 20);
    for (const NormSpec& plain :
         {InstanceNormSpec(kChannels, dtype()), GroupNormSpec(kChannels, 2, dtype()),
          LayerNormSpec(kChannels, dtype()), RmsNormSpec(kChannels, dtype())}) {
      const NormSpec spec = WithLayout(plain);
      const Tensor normalized = Normalize(spec, {}, x, spatial);
      for (const bool has_beta : {false, true}) {
        params.beta = {has_beta ? beta.data() : nullptr, DType::kFloat32};
        const Tensor y = Normalize(spec, params, x, spatial);
        for (std::int64_t i = 0; i < y.count(); ++i) {
          const std::int64_t channel = channels_last() ? i % kChannels : i / spatial;
          const double before = normalized.Get(i);
          if (channel != 4) {
            ASSERT_TRUE(std::isfinite(y.Get(i))) << i;
          } else if (std::abs(before) > 0.01) {  // Others may be nothing but what the mean lost.
            ASSERT_EQ(y.Get(i), std::copysign(kInf, before)) << i << ", spatial " << spatial;
          }
        }
      }
    }
  }
}

TEST_P(KernelEdgeValuesTest, GivenStatisticsKeepSpecialValuesInTheirElement) {
  const NormSpec spec = WithLayout(BatchNormSpec(5, dtype()));
  Tensor x(dtype(), 5 * 321);
  x.Fill(Data::kNormal, TestSeed() + 17);
  x.Set(10, kNaN);
  x.Set(500, kInf);
  x.Set(1111, -kInf);
  ExpectLikeReference(spec, x, 321, TightTolerance(dtype()));
}

TEST_P(KernelEdgeValuesTest, ActivationsTreatSpecialValuesAsThePlainFormulas) {
  NormSpec spec = WithLayout(BatchNormSpec(1, dtype()));
  spec.eps = 0;
  Tensor x(dtype(), 40);
  x.Fill(Data::kConstant, 0);
  x.Set(0, kNaN);
  x.Set(1, kInf);
  x.Set(2, -kInf);
  x.Set(3, -200);
  x.Set(4, 200);
  Tensor mean(DType::kFloat32, 1);
  mean.Set(0, 0);
  Tensor variance(DType::kFloat32, 1);
  variance.Set(0, 1);
  NormParams params;
  params.mean = {mean.data(), mean.dtype()};
  params.variance = {variance.data(), variance.dtype()};
  for (const Activation activation :
       {Activation::kNone, Activation::kRelu, Activation::kLeakyRelu, Activation::kSilu,
        Activation::kGeluErf, Activation::kGeluTanh}) {
    SCOPED_TRACE(static_cast<int>(activation));
    spec.activation = activation;
    std::vector<double> expected(40);
    const Segment segment{x.data(), nullptr, 1, 40};
    ASSERT_TRUE(NormalizeReference(spec, params, segment, expected.data()).ok());
    EXPECT_EQ(Compare(Normalize(spec, params, x, 40), expected, TightTolerance(dtype())), "");
  }
}

TEST_P(KernelEdgeValuesTest, WritesNothingForEmptyTensorsOrIfAnyPartIsInvalid) {
  for (NormSpec spec : {InstanceNormSpec(8, dtype()), GroupNormSpec(8, 2, dtype()),
                        LayerNormSpec(8, dtype()), BatchNormSpec(8, dtype())}) {
    spec = WithLayout(spec);
    const ParamSet params(spec, DType::kFloat32, TestSeed() + 23);
    Tensor x(dtype(), 80), y(dtype(), 80), untouched(dtype(), 80);
    x.Fill(Data::kNormal, TestSeed() + 24);
    y.Poison();
    untouched.Poison();
    const auto compute = [&](const std::vector<Segment>& batch) {
      return backend_->Normalize(spec, params.View(), batch.data(), batch.size());
    };
    const Segment good{x.data(), y.data(), 1, 10};
    const Segment no_sample{nullptr, nullptr, 0, 10};
    EXPECT_TRUE(compute({}).ok());
    EXPECT_TRUE(compute({no_sample, {x.data(), y.data(), 0, 10}, {x.data(), y.data(), 1, 0}}).ok());
    for (const Segment& bad : {Segment{x.data(), y.data(), -1, 10}, {x.data(), nullptr, 1, 10}}) {
      EXPECT_EQ(compute({good, bad}).code(), StatusCode::kInvalidArgument);
    }
    NormSpec no_groups = spec;
    no_groups.groups = 0;
    EXPECT_EQ(backend_->Normalize(no_groups, params.View(), &good, 1).code(),
              StatusCode::kInvalidArgument);
    EXPECT_TRUE(y.SameBytes(untouched));
    EXPECT_TRUE(compute({no_sample, good, {nullptr, nullptr, 3, 0}}).ok());
    EXPECT_FALSE(y.SameBytes(untouched));
  }
}

std::string CaseName(const ::testing::TestParamInfo<std::tuple<DType, Layout>>& test) {
  return std::string(Name(std::get<0>(test.param))) +
         (std::get<1>(test.param) == Layout::kChannelsFirst ? "_first" : "_last");
}

constexpr Layout kLayouts[] = {Layout::kChannelsFirst, Layout::kChannelsLast};

INSTANTIATE_TEST_SUITE_P(All, KernelEdgeValuesTest,
                         ::testing::Combine(::testing::Values(DType::kFloat32, DType::kFloat64,
                                                              DType::kFloat16, DType::kBFloat16),
                                            ::testing::ValuesIn(kLayouts)),
                         CaseName);

INSTANTIATE_TEST_SUITE_P(All, KernelOverflowTest,
                         ::testing::Combine(::testing::Values(DType::kFloat32, DType::kBFloat16),
                                            ::testing::ValuesIn(kLayouts)),
                         CaseName);

}  // namespace
}  // namespace normd::norm::testing
