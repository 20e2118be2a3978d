// Every backend: the stages on NaN and Inf, constants, large means, overflow, zeros, nothing at
// all, and styles that do not exist.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/reference.h"
#include "tests/support/kernel_backend.h"
#include "tests/support/stage.h"
#include "tests/support/staged_check.h"
#include "tests/support/staged_segment.h"
#include "tests/support/stages_fixture.h"
#include "tests/support/tensor.h"

namespace normd::norm::testing {
namespace {

using S = StagedSegment;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr Statistics kOwnStatistics[] = {Statistics::kMeanVariance, Statistics::kMeanSquare,
                                         Statistics::kSumOfAbsolutes, Statistics::kRootOfSquares,
                                         Statistics::kLargestAbsolute};
constexpr std::int64_t kLengths[] = {1, 5, 40, 300};
constexpr std::int64_t kLongLength = 5000;  // In one of ten cases.

class StagesEdgeValuesTest : public StagesFixture {
 protected:
  Status Compute(const NormSpec& spec, const NormParams& params,
                 const std::vector<Segment>& batch) {
    const Status status = backend_->Normalize(spec, params, batch.data(), batch.size());
    if (status.code() == StatusCode::kUnsupported) unsupported_ = status.message();
    return status;
  }

  // One segment of two samples with rows of about `length`, whose inputs `change` changes.
  template <typename Change>
  void Check(StagedSpec staged, std::int64_t length, const Change& change,
             const StagedBounds& bounds = {}) {
    if (random_.Chance(10)) length = kLongLength;
    const std::int64_t spatial = ChooseShape(length, &staged, random_);
    const NormSpec& spec = staged.spec;
    SCOPED_TRACE(::testing::Message()
                 << backend_->Name() << ", " << staged.names << ", statistics "
                 << static_cast<int>(spec.statistics) << ", groups " << spec.groups << " of "
                 << spec.channels << " channels, spatial " << spatial << ", eps " << spec.eps);
    const StagedParams params(spec, staged.input_bias, random_);
    StagedSegment segment(spec, 2, spatial, 20, random_);
    change(segment);
    segment.WantStatistics(true);
    const Status status = Compute(spec, params.View(), {segment.Prepare()});
    if (!unsupported_.empty()) return;
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(segment.StrayWrites(), "");
    EXPECT_EQ(CheckStaged(spec, params.View(), segment, bounds), "");
  }

  // The same with each kind of statistics and of stages, without and with quantization.
  template <typename Change>
  void CheckAll(const Change& change, const StagedBounds& bounds = {}) {
    constexpr Stage kInputs[] = {Stage::kResidualOut,  Stage::kCombineInput,  Stage::kScale,
                                 Stage::kWeightOffset, Stage::kCombineOutput, Stage::kActivation};
    for (const Statistics statistics : kOwnStatistics) {
      for (const std::int64_t length : kLengths) {
        for (const bool quantized : {false, true}) {
          StagedSpec staged = Plain(statistics);
          staged.Add(random_.OneOf(kInputs), random_);
          if (quantized) {
            staged.Add(random_.Chance(50) ? Stage::kRowScale : Stage::kBlockScale, random_);
          }
          Check(staged, length, change, bounds);
          if (HasFailure() || !unsupported_.empty()) return;
        }
      }
    }
  }

  void SetAll(StagedSegment& segment, S::In in, double value) {
    for (std::int64_t i = 0; i < segment.elements(); ++i) segment.SetInput(in, i, value);
  }

  Random random_{SeedOf(72)};
};

TEST_P(StagesEdgeValuesTest, ANotANumberOrAnInfinitySpoilsWhatTheReferenceSays) {
  for (const double value : {kNaN, kInf, -kInf}) {
    CheckAll([&](StagedSegment& segment) {
      segment.SetInput(S::kX, random_.Draw(0, segment.elements() - 1), value);
    });
    if (HasFailure() || !unsupported_.empty()) return;
  }
}

TEST_P(StagesEdgeValuesTest, SpecialValuesOfOtherInputsAreTheReferences) {
  const std::pair<Stage, S::In> inputs[] = {{Stage::kResidualOut, S::kResidual},
                                            {Stage::kResidual, S::kResidual},
                                            {Stage::kGate, S::kGate},
                                            {Stage::kCombineOutput, S::kOther},
                                            {Stage::kCombineInput, S::kOther},
                                            {Stage::kScale, S::kScale},
                                            {Stage::kShift, S::kShift}};
  for (const auto& [stage, in] : inputs) {
    for (const double value : {kNaN, kInf, -kInf}) {
      for (const std::int64_t length : kLengths) {
        StagedSpec staged = Plain(random_.OneOf(kOwnStatistics));
        staged.Add(stage, random_);
        Check(staged, length, [&, in = in](StagedSegment& segment) {
          const bool whole = in == S::kResidual || in == S::kOther;
          const std::int64_t count = segment.elements() / (whole ? 1 : segment.spatial());
          segment.SetInput(in, random_.Draw(0, count - 1), value);
        });
        if (HasFailure() || !unsupported_.empty()) return;
      }
    }
  }
}

TEST_P(StagesEdgeValuesTest, ASpecialScaleSpoilsItsChannelAlone) {
  for (const double value : {kNaN, kInf}) {
    StagedSpec staged = Plain(Statistics::kMeanSquare);
    staged.Add(Stage::kScale, random_);
    staged.spec.channels = 12;
    staged.spec.groups = 3;
    constexpr std::int64_t kSpatial = 20;
    StagedSegment segment(staged.spec, 2, kSpatial, 0, random_);
    segment.SetInput(S::kScale, 17, value);  // Sample 1, channel 5.
    const Status status = Compute(staged.spec, {}, {segment.Prepare()});
    if (!unsupported_.empty()) return;
    ASSERT_TRUE(status.ok()) << status.message();
    for (std::int64_t i = 0; i < segment.elements(); ++i) {
      const bool first = staged.spec.layout == Layout::kChannelsFirst;
      const std::int64_t channel = first ? i / kSpatial % 12 : i % 12;
      const bool spoilt = i >= 12 * kSpatial && channel == 5;
      const double y = segment.OutputAt(S::kY, i);
      ASSERT_EQ(std::isfinite(y), !spoilt) << i << " " << value;
      // Infinity times x, which is NaN where x is zero.
      const double wanted = segment.InputAt(S::kX, i) * value;
      if (spoilt) {
        ASSERT_TRUE(std::isnan(wanted) ? std::isnan(y) : y == wanted) << i << " " << y;
      }
    }
  }
}

TEST_P(StagesEdgeValuesTest, ConstantRowsAgreeWithTheReference) {
  for (const double value : {3.25, -0.5, 0.0}) {
    CheckAll([&](StagedSegment& segment) { SetAll(segment, S::kX, value); });
    if (HasFailure() || !unsupported_.empty()) return;
  }
}

TEST_P(StagesEdgeValuesTest, AConstantRowIsItsShift) {
  for (const std::int64_t length : kLengths) {
    StagedSpec staged = Plain(Statistics::kMeanVariance);
    staged.Add(Stage::kScale, random_);
    staged.Add(Stage::kShift, random_);
    const std::int64_t spatial = ChooseShape(length, &staged, random_);
    StagedSegment segment(staged.spec, 2, spatial, 0, random_);
    SetAll(segment, S::kX, 3.25);
    const Status status = Compute(staged.spec, {}, {segment.Prepare()});
    if (!unsupported_.empty()) return;
    ASSERT_TRUE(status.ok()) << status.message();
    const std::int64_t channels = staged.spec.channels;
    for (std::int64_t i = 0; i < segment.elements(); ++i) {
      const bool first = staged.spec.layout == Layout::kChannelsFirst;
      const std::int64_t channel = first ? i / spatial % channels : i % channels;
      const std::int64_t at = i / (channels * spatial) * channels + channel;
      ASSERT_EQ(segment.OutputAt(S::kY, i), segment.InputAt(S::kShift, at)) << i;
    }
  }
}

TEST_P(StagesEdgeValuesTest, LargeMeansStayWithinTheContract) {
  CheckAll(
      [&](StagedSegment& segment) {
        for (std::int64_t i = 0; i < segment.elements(); ++i) {
          segment.SetInput(S::kX, i, 1e4 + segment.InputAt(S::kX, i));
        }
      },
      {.large_mean = true});
}

TEST_P(StagesEdgeValuesTest, SquaresThatOverflowFloat16AreComputed) {
  CheckAll([&](StagedSegment& segment) {
    for (std::int64_t i = 0; i < segment.elements(); ++i) {
      segment.SetInput(S::kX, i, 300 * segment.InputAt(S::kX, i));
    }
  });
}

// As torch.nn.functional.normalize has it.
TEST_P(StagesEdgeValuesTest, ANormIsAtLeastEps) {
  for (const Statistics statistics :
       {Statistics::kSumOfAbsolutes, Statistics::kRootOfSquares, Statistics::kLargestAbsolute}) {
    for (const double eps : {1e-12, 0.0, 1e3}) {
      for (const std::int64_t length : kLengths) {
        StagedSpec staged = Plain(statistics);
        staged.spec.eps = eps;
        if (random_.Chance(50)) staged.Add(Stage::kShift, random_);
        const double value = eps == 1e3 ? 0.25 : 0;
        Check(staged, length, [&](StagedSegment& segment) { SetAll(segment, S::kX, value); });
        if (HasFailure() || !unsupported_.empty()) return;
      }
    }
  }
}

TEST_P(StagesEdgeValuesTest, ZerosHaveTheLeastScale) {
  for (const Stage stage : {Stage::kRowScale, Stage::kBlockScale}) {
    for (const std::int64_t length : kLengths) {
      StagedSpec staged = Plain(Statistics::kMeanSquare);
      staged.Add(stage, random_);
      const std::int64_t spatial = ChooseShape(length, &staged, random_);
      StagedSegment segment(staged.spec, 1, spatial, 0, random_);
      SetAll(segment, S::kX, 0);
      const Status status = Compute(staged.spec, {}, {segment.Prepare()});
      if (!unsupported_.empty()) return;
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(segment.OutputAt(S::kScaleOut, 0), 0x1p-126);
      for (std::int64_t i = 0; i < segment.elements(); ++i) {
        ASSERT_EQ(segment.OutputAt(S::kY, i), 0) << i;
      }
    }
  }
}

// Given statistics that leave x as it is, and a scale of 1: ties are exact here.
TEST_P(StagesEdgeValuesTest, ValuesAreRoundedToNearestEvenAndSaturated) {
  std::vector<double> values = {0, kInf, kNaN, 6e4, 449, 463, 464, 480, 0x1p-10, 0x1p-11, 1e-4};
  for (int i = 0; i < 260; ++i) values.push_back(0.5 * i);  // Whole numbers and what is between.
  for (std::uint8_t code = 0; code < 0x7e; ++code) {
    const std::uint8_t codes[2] = {code, static_cast<std::uint8_t>(code + 1)};
    const double low = LoadQuantized(Quantization::kFloat8E4M3, codes, 0);
    values.push_back((low + LoadQuantized(Quantization::kFloat8E4M3, codes, 1)) / 2);
    values.push_back(low);
  }
  for (std::size_t i = 0, count = values.size(); i < count; ++i) values.push_back(-values[i]);
  const double zero = 0, one = 1;
  NormParams params;
  params.mean = {&zero, DType::kFloat64};
  params.variance = {&one, DType::kFloat64};
  for (const Quantization quantization : {Quantization::kInt8, Quantization::kFloat8E4M3}) {
    NormSpec spec = Plain(Statistics::kGiven).spec;
    spec.rows = Rows::kGroup;
    spec.channels = spec.groups = 1;
    spec.eps = 0;
    spec.quantization = quantization;
    spec.output_scale = 1;
    StagedSegment segment(spec, 1, static_cast<std::int64_t>(values.size()), 0, random_);
    for (std::int64_t i = 0; i < segment.elements(); ++i) {
      segment.SetInput(S::kX, i, values[static_cast<std::size_t>(i)]);
    }
    const Status status = Compute(spec, params, {segment.Prepare()});
    if (!unsupported_.empty()) return;
    ASSERT_TRUE(status.ok()) << status.message();
    for (std::int64_t i = 0; i < segment.elements(); ++i) {
      const double x = segment.InputAt(S::kX, i);
      std::uint8_t code = 0;
      StoreQuantized(quantization, &code, 0, x);
      const double want = LoadQuantized(quantization, &code, 0);
      const double got = segment.OutputAt(S::kY, i);
      ASSERT_TRUE(got == want || (std::isnan(got) && std::isnan(want)))
          << x << " as " << got << ", wanted " << want;
    }
  }
}

TEST_P(StagesEdgeValuesTest, EmptySegmentsWriteNothing) {
  StagedSpec staged = Plain(Statistics::kMeanVariance);
  for (const Stage stage :
       {Stage::kGate, Stage::kResidualOut, Stage::kScale, Stage::kStyleIndex, Stage::kRowScale}) {
    staged.Add(stage, random_);
  }
  staged.spec.channels = 6;
  staged.spec.groups = 2;
  const NormSpec& spec = staged.spec;
  const StagedParams params(spec, false, random_);
  StagedSegment full(spec, 2, 10, 0, random_);
  full.WantStatistics(true);
  const auto empty = [](std::int64_t samples, std::int64_t spatial) {
    Segment segment;
    segment.samples = samples;
    segment.spatial = spatial;
    return segment;
  };
  Status status =
      Compute(spec, params.View(), {empty(0, 10), full.Prepare(), empty(3, 0), empty(0, 0)});
  if (!unsupported_.empty()) return;
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(CheckStaged(spec, params.View(), full), "");
  EXPECT_TRUE(Compute(spec, params.View(), {empty(0, 10), empty(3, 0)}).ok());
  EXPECT_TRUE(Compute(spec, params.View(), {}).ok());
}

TEST_P(StagesEdgeValuesTest, AStyleThatTheTableLacksIsRefusedOrNotANumber) {
  StagedSpec staged = Plain(Statistics::kMeanVariance);
  staged.Add(Stage::kStyleIndex, random_);
  staged.spec.styles = 3;
  staged.spec.channels = 6;
  staged.spec.groups = 2;
  const NormSpec& spec = staged.spec;
  const StagedParams params(spec, false, random_);
  for (const std::int64_t wrong :
       {std::int64_t{3}, std::int64_t{-1}, std::numeric_limits<std::int64_t>::min(),
        std::numeric_limits<std::int64_t>::max()}) {
    StagedSegment good(spec, 1, 10, 0, random_);
    StagedSegment segment(spec, 3, 10, 0, random_);
    std::memcpy(static_cast<char*>(segment.input(S::kStyleIndex)) + 8, &wrong, sizeof(wrong));
    const Status status = Compute(spec, params.View(), {good.Prepare(), segment.Prepare()});
    if (!unsupported_.empty()) return;
    EXPECT_EQ(segment.StrayWrites(), "");
    if (is_cuda()) {
      ASSERT_TRUE(status.ok()) << status.message();
    } else {
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
      EXPECT_EQ(status.message().rfind("segments[1].style_index[1]: ", 0), 0u) << status.message();
    }
    // Poisoned outputs are NaN too.
    for (std::int64_t i = 0; i < segment.elements(); ++i) {
      const bool computed = is_cuda() && i / 60 != 1;
      ASSERT_EQ(std::isnan(segment.OutputAt(S::kY, i)), !computed) << i;
    }
    EXPECT_EQ(std::isnan(good.OutputAt(S::kY, 0)), !is_cuda());
  }
}

INSTANTIATE_TEST_SUITE_P(All, StagesEdgeValuesTest, EveryRow(kFloatTypes), StagesName);

}  // namespace
}  // namespace normd::norm::testing
