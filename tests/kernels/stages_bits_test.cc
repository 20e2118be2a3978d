// Every backend: the bits of what is computed stage by stage depend on the sample alone.

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <tuple>

#include "tests/kernels/stages_bits_fixture.h"

namespace normd::norm::testing {
namespace {

TEST_P(StagesBitsTest, ASampleHasTheSameBitsInAnyCompany) {
  for (const std::int64_t length :
       {1, 2, 7, 17, 33, 129, 257, 1023, 1025, 2049, 4097, 16383, 16385, 65537, 131088}) {
#ifdef NORMD_SANITIZED
    if (length > 4097) continue;
    const int cases = 3;
#else
    const int cases = length > 20000 ? 3 : length > 1000 ? 8 : 20;
#endif
    for (int i = 0; i < cases; ++i) {
      Check(length);
      if (HasFailure() || !unsupported_.empty()) return;
    }
  }
}

// Norms of rows that a device spreads over blocks without the stages' kernels.
TEST_P(StagesBitsTest, ANormOfALongRowHasTheSameBitsInAnyCompany) {
#ifdef NORMD_SANITIZED
  GTEST_SKIP() << "rows of hundreds of kilobytes";
#endif
  const auto [dtype, layout, rows] = GetParam();
  for (const Statistics statistics :
       {Statistics::kSumOfAbsolutes, Statistics::kRootOfSquares, Statistics::kLargestAbsolute}) {
    for (const std::int64_t length : {20000, 33001, 65537, 100000}) {
      StagedSpec staged = PlainSpec(dtype, layout, rows, statistics);
      if (random_.Chance(50)) staged.Add(Stage::kActivation, random_);
      const std::int64_t spatial = ChooseShape(length, &staged, random_);
      Check(staged, 2, spatial);
      if (HasFailure() || !unsupported_.empty()) return;
    }
  }
}

// Rows with an input beside x, some of them whole vectors, in kernels that addresses and the types
// of parameters choose.
TEST_P(StagesBitsTest, ASampleHasTheSameBitsAtAnyAddress) {
  constexpr Stage kInputs[] = {Stage::kResidual, Stage::kResidualOut, Stage::kInputBias,
                               Stage::kInputBiasOut, Stage::kCombineInput};
  for (const std::int64_t length : {24, 520, 1031, 1040, 3249, 4096, 16384, 40008}) {
#ifdef NORMD_SANITIZED
    if (length > 4097) continue;
#endif
    for (const Stage input : kInputs) {
      for (const bool of_rows_type : {false, true}) {
        StagedSpec staged = DrawSpec();
        StagedSpec more = staged;
        more.Add(input, random_);
        if (more.IsValid()) staged = more;
        const std::int64_t spatial = ChooseShape(length, &staged, random_);
        if (of_rows_type && staged.spec.style == Style::kNone &&
            staged.spec.statistics != Statistics::kGiven) {
          Check(staged, StagedParams::OfRowsType(staged.spec, staged.input_bias, random_), 2,
                spatial);
        } else {
          Check(staged, 2, spatial);
        }
        if (HasFailure() || !unsupported_.empty()) return;
      }
    }
  }
}

// Rows that kernels of vectors take at some addresses alone, and rows that are no whole vectors.
TEST_P(StagesBitsTest, QuantizedRowsHaveTheSameBitsAtAnyAddress) {
  const auto [dtype, layout, rows] = GetParam();
  if ((layout == Layout::kChannelsLast) != (rows == Rows::kPosition)) {
    GTEST_SKIP() << "rows of these layouts lie apart";
  }
  for (const std::int64_t channels : {40, 99, 129, 520, 1031, 1040, 4096, 4097, 16384, 20001}) {
#ifdef NORMD_SANITIZED
    if (channels > 1040) continue;
#endif
    for (const Stage scale : {Stage::kStaticScale, Stage::kRowScale, Stage::kBlockScale}) {
      for (const Statistics statistics :
           {Statistics::kMeanVariance, Statistics::kMeanSquare, Statistics::kRootOfSquares}) {
        StagedSpec staged = PlainSpec(dtype, layout, rows, statistics);
        staged.spec.channels = channels;
        staged.spec.groups = channels % 3 == 0 && random_.Chance(50) ? 3 : 1;
        staged.Add(scale, random_);
        if (random_.Chance(30)) staged.spec.weight_offset = 1;
        const std::int64_t spatial = rows == Rows::kPosition ? random_.Draw(1, 5) : 1;
        if (random_.Chance(70)) {
          Check(staged, StagedParams::OfRowsType(staged.spec, false, random_), 3, spatial);
        } else {
          Check(staged, 3, spatial);
        }
        if (HasFailure() || !unsupported_.empty()) return;
      }
    }
  }
}

// Rows of both tensors in registers of a warp, of a block and in slices, by addresses or not.
TEST_P(StagesBitsTest, AStyleTensorHasTheSameBitsAtAnyAddress) {
  const auto [dtype, layout, rows] = GetParam();
  if (rows == Rows::kPosition) GTEST_SKIP() << "style tensors are of channels";
  for (const std::int64_t length : {40, 64, 128, 512, 520, 1024, 1031, 2048, 4096, 16384}) {
    for (int i = 0; i < 3; ++i) {
      StagedSpec staged = PlainSpec(dtype, layout, rows, Statistics::kMeanVariance);
      staged.Add(Stage::kStyleTensor, random_);
      const std::int64_t spatial = ChooseShape(length, &staged, random_);
      Check(staged, random_.Draw(1, 3), spatial);
      if (HasFailure() || !unsupported_.empty()) return;
    }
  }
}

// Slices of fused projections: rows of a warp and of a block, whole vectors and others, with the
// parameters that the fastest kernels take.
TEST_P(StagesBitsTest, RowsOfModelsHaveTheSameBitsBetweenGaps) {
  const auto [dtype, layout, rows] = GetParam();
  if ((layout == Layout::kChannelsLast) != (rows == Rows::kPosition)) {
    GTEST_SKIP() << "rows of models lie together";
  }
  for (const std::int64_t channels : {8, 64, 99, 128, 129, 520, 1031, 1040, 4096, 5120, 16384}) {
#ifdef NORMD_SANITIZED
    if (channels > 1040) continue;
#endif
    for (const Statistics statistics : {Statistics::kMeanVariance, Statistics::kMeanSquare}) {
      for (const bool residual : {false, true}) {
        StagedSpec staged = PlainSpec(dtype, layout, rows, statistics);
        staged.spec.channels = channels;
        staged.spec.groups = channels % 3 == 0 && random_.Chance(50) ? 3 : 1;
        staged.spec.residual = staged.spec.residual_out = residual;
        if (random_.Chance(30)) staged.spec.weight_offset = 1;
        Check(staged, StagedParams::OfRowsType(staged.spec, false, random_), random_.Draw(3, 40),
              rows == Rows::kPosition ? random_.Draw(2, 5) : 1);
        if (HasFailure() || !unsupported_.empty()) return;
      }
    }
  }
}

// Launches of thousands of rows take other ways than small ones, which ask for gamma and beta with
// the row: rows that share factors, and tiles of positions, are handed out to blocks that stay.
TEST_P(StagesBitsTest, ASampleHasTheSameBitsAmongThousandsAndAlone) {
  const DType dtype = std::get<DType>(GetParam());
  const Layout layout = std::get<Layout>(GetParam());
  const Rows rows = std::get<Rows>(GetParam());
  if (!is_cuda()) GTEST_SKIP() << "launches are a device's";
  if (dtype == DType::kFloat64) GTEST_SKIP() << "has one way";
  const auto of = [&](std::int64_t channels, Statistics statistics) {
    StagedSpec staged;
    staged.spec = LayerNormSpec(channels, dtype);
    staged.spec.statistics = statistics;
    staged.spec.layout = layout;
    staged.spec.rows = rows;
    staged.CutChannels(random_);
    return staged;
  };
  const std::int64_t vector = 16 / static_cast<std::int64_t>(SizeOf(dtype));
  for (const std::int64_t channels : {129 * vector, 300 * vector, 900 * vector}) {
    for (const Statistics statistics : {Statistics::kMeanVariance, Statistics::kMeanSquare}) {
      if (rows == Rows::kPosition && layout == Layout::kChannelsFirst) {
        Check(of(channels == 129 * vector ? 48 : 520, statistics), 300, 65 * vector / 2 * 2);
        continue;
      }
      StagedSpec staged = of(channels, statistics);
      const std::int64_t samples = channels == 900 * vector ? 2 : 15;
      if (rows == Rows::kGroup) {
        staged.spec.quantization = Quantization::kFloat8E4M3;
        staged.spec.quantization_scale =
            layout == Layout::kChannelsFirst ? QuantizationScale::kRow : QuantizationScale::kBlock;
        Check(staged, 600 * samples, 1);
        const auto check_with_rows_type = [&](const StagedSpec& more) {
          Check(more, StagedParams::OfRowsType(more.spec, false, random_), 300 * samples, 1);
        };
        staged.spec.residual = staged.spec.residual_out = true;
        check_with_rows_type(staged);
        staged.spec.quantization_scale = QuantizationScale::kStatic;
        staged.spec.output_scale = 0.01;
        check_with_rows_type(staged);
        staged.spec.quantization = Quantization::kNone;
        staged.spec.output_scale = 0;
        check_with_rows_type(staged);
        StagedSpec offset = of(channels, statistics);
        offset.spec.weight_offset = 1;
        check_with_rows_type(offset);
      } else {
        staged.spec.scale = staged.spec.shift = true;
        Check(staged, samples, 600);
        staged.spec.residual = staged.spec.gate = true;
        Check(staged, samples, 600);
      }
      if (HasFailure()) return;
    }
  }
}

TEST_P(StagesBitsTest, ManySamplesHaveTheBitsOfFew) {
  for (const Stage stage : {Stage::kScale, Stage::kShift, Stage::kGate, Stage::kStyleIndex,
                            Stage::kStyleMix, Stage::kStyleTensor}) {
    CheckManySamples(stage);
    if (HasFailure() || !unsupported_.empty()) return;
  }
}

// One style as it is, by its weight and by its number.
TEST_P(StagesBitsTest, TheWeightOneAmongZerosHasTheBitsOfTheIndex) {
  for (const std::int64_t length : {1, 5, 40, 300, 5000}) {
    for (int i = 0; i < 12; ++i) {
      StagedSpec staged = DrawSpec();
      NormSpec& spec = staged.spec;
      if (spec.style != Style::kNone) continue;
      const std::int64_t spatial = ChooseShape(length, &staged, random_);
      spec.style = Style::kMix;
      spec.styles = 3;
      if (!staged.IsValid()) continue;
      SCOPED_TRACE(::testing::Message()
                   << backend_->Name() << ", " << staged.names << ", groups " << spec.groups
                   << " of " << spec.channels << " channels, spatial " << spatial);
      const StagedParams params(spec, staged.input_bias, random_);
      Random same_draws = random_;
      StagedSegment mixed(spec, 2, spatial, 0, random_);
      for (std::int64_t k = 0; k < 6; ++k) {
        mixed.SetInput(StagedSegment::kStyleWeights, k, k == 1 || k == 5 ? 1 : 0);
      }
      if (!Compute(*backend_, spec, params.View(), {mixed.Prepare()})) return;
      NormSpec by_index = spec;
      by_index.style = Style::kIndex;
      const std::int64_t indexes[] = {1, 2};
      StagedSegment indexed(by_index, 2, spatial, 0, same_draws);
      std::memcpy(indexed.input(StagedSegment::kStyleIndex), indexes, sizeof(indexes));
      ASSERT_TRUE(Compute(*backend_, by_index, params.View(), {indexed.Prepare()}));
      EXPECT_EQ(indexed.Differences(mixed, 0), "");
      if (HasFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, StagesBitsTest, EveryRow(kFloatTypes), StagesName);
INSTANTIATE_TEST_SUITE_P(MixedRuns, StagesBitsTest, EveryRowOfMixedRuns(kFloatTypes), StagesName);

}  // namespace
}  // namespace normd::norm::testing
