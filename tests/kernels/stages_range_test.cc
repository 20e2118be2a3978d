// Every backend: the stages at the ends of what their types hold. Norms of great and tiny rows,
// infinite scales, ties of quantized products.

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/reference.h"
#include "tests/support/kernel_backend.h"
#include "tests/support/stage.h"
#include "tests/support/staged_segment.h"
#include "tests/support/stages_fixture.h"
#include "tests/support/tensor.h"

namespace normd::norm::testing {
namespace {

using S = StagedSegment;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kLargestFloat = std::numeric_limits<float>::max();

class StagesRangeTest : public StagesFixture {
 protected:
  void Compute(const NormSpec& spec, const NormParams& params, StagedSegment& segment) {
    segment.WantStatistics(true);
    const Segment prepared = segment.Prepare();
    const Status status = backend_->Normalize(spec, params, &prepared, 1);
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_EQ(segment.StrayWrites(), "");
  }

  static std::int64_t ChannelOf(const NormSpec& spec, const StagedSegment& segment,
                                std::int64_t element) {
    return spec.layout == Layout::kChannelsFirst ? element / segment.spatial() % spec.channels
                                                 : element % spec.channels;
  }
  static std::int64_t RowOf(const NormSpec& spec, const StagedSegment& segment,
                            std::int64_t element) {
    const std::int64_t spatial = segment.spatial();
    const std::int64_t position = spec.layout == Layout::kChannelsFirst
                                      ? element % spatial
                                      : element / spec.channels % spatial;
    const std::int64_t group = ChannelOf(spec, segment, element) / (spec.channels / spec.groups) +
                               element / (spec.channels * spatial) * spec.groups;
    return spec.rows == Rows::kGroup ? group : group * spatial + position;
  }

  // Magnitudes of rows whose norms have a reciprocal in double, and on CUDA in float32.
  std::vector<double> Magnitudes(Statistics statistics) const {
    const bool squares = statistics == Statistics::kRootOfSquares;
    switch (dtype()) {
      case DType::kFloat16: return {1, 1e-7, 6e4};
      case DType::kFloat64:
        if (squares) return {1, 1e-140, 1e150};
        return {1, 1e-300, 1e-140, 1e150, 1e300};
      default:
        if (squares) return {1, 1e-15, 1e18, 1e20, 3e38};
        if (is_cuda()) return {1, 1e-30, 1e20, 3e38};
        return {1, 1e-40, 1e-30, 1e20, 3e38};
    }
  }

  // Whether float32 holds what CUDA sums for a row of such a norm.
  bool IsSummed(Statistics statistics, double norm) const {
    if (!is_cuda() || dtype() == DType::kFloat64) return true;
    return (statistics == Statistics::kRootOfSquares ? norm * norm : norm) <= kLargestFloat;
  }

  // Rows of `length` elements, each of a magnitude of its own.
  void CheckNorms(Statistics statistics, std::int64_t length) {
    StagedSpec staged = Plain(statistics);
    const std::int64_t spatial = ChooseShape(length, &staged, random_);
    NormSpec& spec = staged.spec;
    spec.eps = random_.OneOf(std::to_array({0.0, 1e-310}));
    spec.scale = random_.Chance(30);
    Tensor gamma(random_.OneOf(std::to_array({DType::kFloat32, DType::kFloat64})), spec.channels);
    gamma.Fill(Data::kNormal, static_cast<std::uint64_t>(random_.Draw(0, 1 << 30)));
    NormParams params;
    if (random_.Chance(50)) params.gamma = {gamma.data(), gamma.dtype()};
    SCOPED_TRACE(::testing::Message()
                 << "statistics " << static_cast<int>(statistics) << ", groups " << spec.groups
                 << " of " << spec.channels << " channels, spatial " << spatial << ", eps "
                 << spec.eps << (params.gamma.data != nullptr ? ", gamma" : "")
                 << (spec.scale ? ", scale" : ""));

    StagedSegment segment(spec, 2, spatial, 0, random_);
    const std::vector<double> magnitudes = Magnitudes(statistics);
    std::vector<double> of_row;
    for (std::int64_t i = 0; i < segment.elements(); ++i) {
      const auto row = static_cast<std::size_t>(RowOf(spec, segment, i));
      while (of_row.size() <= row) of_row.push_back(0);
      const bool first = of_row[row] == 0;  // No row is of zeros alone.
      if (first) of_row[row] = random_.OneOf(magnitudes);
      const double part = first ? 1 : static_cast<double>(random_.Draw(-100, 100)) / 100;
      segment.SetInput(S::kX, i, of_row[row] * part);
    }
    ASSERT_NO_FATAL_FAILURE(Compute(spec, params, segment));

    std::vector<double> y(static_cast<std::size_t>(segment.elements()));
    std::vector<double> rstd(of_row.size());
    ASSERT_TRUE(
        NormalizeReference(spec, params, segment.Reference(), {y.data(), nullptr, rstd.data()})
            .ok());
    const double unit = dtype() == DType::kFloat64    ? 1e-13
                        : dtype() == DType::kFloat32  ? 2e-6
                        : dtype() == DType::kBFloat16 ? 0x1p-7
                                                      : 0x1p-10;
    const double least = dtype() == DType::kFloat64    ? 0x1p-1070
                         : dtype() == DType::kFloat32  ? 0x1p-140
                         : dtype() == DType::kBFloat16 ? 0x1p-133
                                                       : 0x1p-24;
    for (std::int64_t i = 0; i < segment.elements(); ++i) {
      const auto row = static_cast<std::size_t>(RowOf(spec, segment, i));
      const double got = segment.OutputAt(S::kY, i);
      if (!IsSummed(statistics, 1 / rstd[row])) {
        ASSERT_EQ(got, 0) << i;
        continue;
      }
      Tensor want(dtype(), 1);
      want.Set(0, y[static_cast<std::size_t>(i)]);
      const double error = std::fabs(got - want.Get(0));
      ASSERT_TRUE(got == want.Get(0) || error <= unit * std::fabs(want.Get(0)) + least)
          << got << " at " << i << " of a row of " << of_row[row] << ", wanted " << want.Get(0);
    }
    const bool wide = dtype() == DType::kFloat64;
    for (std::size_t row = 0; row < rstd.size(); ++row) {
      if (!IsSummed(statistics, 1 / rstd[row])) continue;
      const double want = wide ? rstd[row] : static_cast<double>(static_cast<float>(rstd[row]));
      const double got = segment.OutputAt(S::kRstdOut, static_cast<std::int64_t>(row));
      ASSERT_TRUE(got == want ||
                  std::fabs(got - want) <= (wide ? 1e-13 : 2e-6) * want + (wide ? 0 : 0x1p-148))
          << got << " of row " << row << ", wanted " << want;
    }
  }

  Random random_{TestSeed() + 7300};
};

TEST_P(StagesRangeTest, ANormOfAnyMagnitudeIsComputed) {
  for (const Statistics statistics :
       {Statistics::kSumOfAbsolutes, Statistics::kRootOfSquares, Statistics::kLargestAbsolute}) {
    for (const std::int64_t length : {1, 5, 17, 40, 300, 1031, 5000, 40000}) {
      for (int i = 0; i < (length > 1000 ? 1 : 4); ++i) {
        CheckNorms(statistics, length);
        if (HasFailure()) return;
      }
    }
  }
}

// A sample's scale multiplies gamma and beta apart: docs/operations.md says so.
TEST_P(StagesRangeTest, AnInfiniteScaleMakesNaNOfTermsOfTwoSigns) {
  for (const std::int64_t spatial : {1, 3, 40}) {
    StagedSpec staged = Plain(Statistics::kMeanSquare);
    NormSpec& spec = staged.spec;
    spec.channels = 12;
    spec.groups = 3;
    spec.scale = true;
    Tensor beta(DType::kFloat32, spec.channels);
    beta.Fill(Data::kNormal, TestSeed() + 7301);
    NormParams params;
    params.beta = {beta.data(), beta.dtype()};
    StagedSegment segment(spec, 2, spatial, 0, random_);
    for (std::int64_t i = 0; i < 2 * spec.channels; ++i) segment.SetInput(S::kScale, i, -kInfinity);
    ASSERT_NO_FATAL_FAILURE(Compute(spec, params, segment));
    for (std::int64_t i = 0; i < segment.elements(); ++i) {
      const double of_x = -kInfinity * segment.InputAt(S::kX, i);
      const double wanted = of_x - kInfinity * beta.Get(ChannelOf(spec, segment, i));
      const double got = segment.OutputAt(S::kY, i);
      ASSERT_TRUE(std::isnan(wanted) ? std::isnan(got) : got == wanted) << i << " " << got;
    }
  }
}

// Given statistics leave x as it is, so that the product with the reciprocal of the scale is known
// to the bit, ties of its quotient with the scale among them.
TEST_P(StagesRangeTest, QuantizedValuesAreProductsRoundedToFloat32) {
  if (std::get<Rows>(GetParam()) == Rows::kPosition) GTEST_SKIP() << "given statistics";
  constexpr std::int64_t kElements = 4000;
  const double zero = 0, one = 1;
  NormParams params;
  params.mean = {&zero, DType::kFloat64};
  params.variance = {&one, DType::kFloat64};
  for (const Quantization quantization : {Quantization::kInt8, Quantization::kFloat8E4M3}) {
    for (const double scale : {0.05, 0.3, 1e-3, 7.7}) {
      NormSpec spec = Plain(Statistics::kGiven).spec;
      spec.channels = spec.groups = 1;
      spec.eps = 0;
      spec.quantization = quantization;
      spec.output_scale = scale;
      StagedSegment segment(spec, 1, kElements, 0, random_);
      for (std::int64_t i = 0; i < kElements; ++i) {
        const double tie = static_cast<double>(random_.Draw(-130, 130)) + 0.5;
        // Whole steps of E4M3 are 8 apart in [64, 128).
        const double near =
            tie * (quantization == Quantization::kInt8 ? 1 : random_.OneOf(std::to_array({1, 8})));
        const double of =
            random_.Chance(50) ? scale : static_cast<double>(static_cast<float>(scale));
        segment.SetInput(S::kX, i,
                         near * of * (1 + 0x1p-50 * static_cast<double>(random_.Draw(-9, 9))));
      }
      const Segment prepared = segment.Prepare();
      const Status status = backend_->Normalize(spec, params, &prepared, 1);
      ASSERT_TRUE(status.ok()) << status.message();
      const auto as_float = static_cast<float>(scale);
      for (std::int64_t i = 0; i < kElements; ++i) {
        const double x = segment.InputAt(S::kX, i);
        const float product = dtype() == DType::kFloat64
                                  ? static_cast<float>(x * (1 / static_cast<double>(as_float)))
                                  : static_cast<float>(x) * (1 / as_float);
        std::uint8_t code = 0;
        StoreQuantized(quantization, &code, 0, static_cast<double>(product));
        ASSERT_EQ(segment.OutputAt(S::kY, i), LoadQuantized(quantization, &code, 0))
            << x << " by a scale of " << scale;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, StagesRangeTest, EveryRow(kFloatTypes), StagesName);

}  // namespace
}  // namespace normd::norm::testing
