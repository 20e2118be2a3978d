// Every backend against the float64 reference: every stage and every pair of stages, over types,
// layouts, rows and statistics, in place and apart, in batches whose segments differ.

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "tests/support/kernel_backend.h"
#include "tests/support/stage.h"
#include "tests/support/staged_check.h"
#include "tests/support/staged_segment.h"
#include "tests/support/stages_fixture.h"
#include "tests/support/tensor.h"

namespace normd::norm::testing {
namespace {

class StagesTest : public StagesFixture {
 protected:
  // Statistics that go with the stages that a case will get.
  StagedSpec WithStages(std::initializer_list<Stage> stages) {
    for (int tries = 0; tries < 20; ++tries) {
      StagedSpec staged = Plain(random_.OneOf(kEveryStatistics));
      for (const Stage stage : stages) staged.Add(stage, random_);
      if (staged.spec.style == Style::kTensor) staged.spec.statistics = Statistics::kMeanVariance;
      if (staged.IsValid()) return staged;
    }
    return {};
  }

  // A batch of `count` segments with rows of about `length`, each against the reference.
  void CheckBatch(StagedSpec staged, std::int64_t length, std::int64_t count) {
    const std::int64_t spatial = ChooseShape(length, &staged, random_);
    CheckSegments(staged, spatial, length > 300 ? 1 : 3, count);
  }

  // The same of a spec with its shape, for up to `max_samples` samples each.
  void CheckSegments(const StagedSpec& staged, std::int64_t spatial, std::int64_t max_samples,
                     std::int64_t count) {
    const NormSpec& spec = staged.spec;
    SCOPED_TRACE(::testing::Message()
                 << backend_->Name() << ", " << staged.names << ", statistics "
                 << static_cast<int>(spec.statistics) << ", activation "
                 << static_cast<int>(spec.activation) << ", groups " << spec.groups << " of "
                 << spec.channels << " channels, spatial " << spatial << ", styles " << spec.styles
                 << ", quantization " << static_cast<int>(spec.quantization) << ", combine "
                 << static_cast<int>(spec.combine_input) << static_cast<int>(spec.combine_output));
    const auto draw = [&] {
      return as_in_models_ ? StagedParams::OfRowsType(spec, staged.input_bias, random_)
                           : StagedParams(spec, staged.input_bias, random_);
    };
    const StagedParams params = draw(), own = draw();
    const NormParams view = params.View(), own_view = own.View();
    std::vector<StagedSegment> segments;
    std::vector<bool> has_own;
    for (std::int64_t i = 0; i < count; ++i) {
      // The spatial sizes of others are smaller, but rows in blocks stay as they are.
      const bool same =
          i == 0 || same_spatial_ || spec.quantization_scale == QuantizationScale::kBlock;
      segments.emplace_back(spec, max_samples == 1 ? 1 : random_.Draw(1, max_samples),
                            same ? spatial : random_.Draw(1, std::min<std::int64_t>(spatial, 50)),
                            random_.Draw(1, 70), random_);
      segments.back().WantStatistics(random_.Chance(50));
      segments.back().DrawPlacement(random_);
      if (!as_in_models_) segments.back().DrawOffsets(!is_cuda(), random_);
      has_own.push_back(random_.Chance(30));
    }
    std::vector<Segment> batch;
    for (std::size_t i = 0; i < segments.size(); ++i) {
      batch.push_back(segments[i].Prepare(has_own[i] ? &own_view : nullptr));
    }
    const Status status = backend_->Normalize(spec, view, batch.data(), batch.size());
    if (status.code() == StatusCode::kUnsupported) {
      unsupported_ = status.message();
      return;
    }
    ASSERT_TRUE(status.ok()) << status.message();
    for (std::size_t i = 0; i < segments.size(); ++i) {
      EXPECT_EQ(segments[i].StrayWrites(), "") << "segment " << i;
      EXPECT_EQ(CheckStaged(spec, has_own[i] ? own_view : view, segments[i]), "")
          << "segment " << i << " of " << segments.size();
    }
    ++checked_;
  }

  Random random_{SeedOf(70)};
  bool as_in_models_ = false;  // Parameters have x's type, and all addresses are aligned.
  bool same_spatial_ = false;  // In all segments.
  int checked_ = 0;
};

// Around vectors, warps and blocks.
constexpr std::int64_t kShortLengths[] = {1,  2,  3,   7,   8,   15,  16,  17,  31, 32,
                                          33, 63, 100, 127, 128, 129, 255, 256, 257};

// Around vectors, blocks, chunks of 4096 elements and parts of 65536.
TEST_P(StagesTest, PlainRowsAgreeWithTheReference) {
  for (const Statistics statistics : kEveryStatistics) {
    for (const std::int64_t length :
         {1,    2,    3,    7,    8,    15,    16,    17,    31,    32,   33,
          63,   64,   65,   127,  129,  255,   257,   511,   513,   1023, 1024,
          1025, 2049, 4095, 4096, 4097, 65535, 65536, 65537, 140001}) {
#ifdef NORMD_SANITIZED
      if (length > 4097) continue;
#endif
      for (int i = length > 2049 ? 1 : 3; i > 0; --i) {
        StagedSpec staged = Plain(statistics);
        if (!staged.IsValid()) continue;
        if (random_.Chance(30)) staged.Add(Stage::kActivation, random_);
        CheckBatch(staged, length, length > 4097 ? 1 : random_.Draw(1, 3));
        if (HasFailure() || !unsupported_.empty()) return;
      }
    }
  }
}

TEST_P(StagesTest, PlainRowsOfManyChannelCountsAgreeWithTheReference) {
  if (std::get<Layout>(GetParam()) == Layout::kMixedRuns) GTEST_SKIP() << "has no groups";
  const struct {
    std::int64_t channels, groups, spatial;
  } shapes[] = {{1, 1, 37},  {3, 1, 333},  {3, 3, 100},   {6, 3, 49},   {20, 5, 64}, {64, 8, 49},
                {65, 5, 40}, {257, 1, 33}, {320, 32, 64}, {515, 5, 17}, {8, 4, 5},   {3, 3, 2}};
  for (const Statistics statistics : kEveryStatistics) {
    for (const auto& [channels, groups, spatial] : shapes) {
      StagedSpec staged = Plain(statistics);
      if (!staged.IsValid()) continue;
      staged.spec.channels = channels;
      staged.spec.groups = groups;
      CheckSegments(staged, spatial, spatial < 10 ? 40 : 3, 2);
      if (HasFailure() || !unsupported_.empty()) return;
    }
  }
}

TEST_P(StagesTest, EveryPairOfStagesAgreesWithTheReference) {
  for (int first = 0; first < kStages; ++first) {
    for (int second = first; second < kStages; ++second) {
      const StagedSpec staged = WithStages({Stage(first), Stage(second)});
      if (staged.names.empty()) continue;
      CheckBatch(staged, random_.OneOf(kShortLengths), random_.Draw(1, 3));
      if (HasFailure() || !unsupported_.empty()) return;
    }
  }
  // With positions, style tensors and given statistics drop out.
  EXPECT_GT(checked_, std::get<Rows>(GetParam()) == Rows::kGroup ? 120 : 100);
}

TEST_P(StagesTest, ThreeStagesAndMoreAgreeWithTheReference) {
#ifdef NORMD_SANITIZED
  constexpr int kCases = 20;
#else
  constexpr int kCases = 120;
#endif
  while (checked_ < kCases) {
    StagedSpec staged = Plain(random_.OneOf(kEveryStatistics));
    if (!staged.IsValid()) continue;
    for (std::int64_t i = random_.Draw(3, 7); i > 0; --i) {
      StagedSpec more = staged;
      more.Add(static_cast<Stage>(random_.Draw(0, kStages - 1)), random_);
      if (more.IsValid()) staged = more;
    }
    CheckBatch(staged, random_.OneOf(kShortLengths), random_.Draw(1, 3));
    if (HasFailure() || !unsupported_.empty()) return;
  }
}

TEST_P(StagesTest, LongRowsAgreeWithTheReference) {
  for (const std::int64_t boundary : {1024, 2048, 4096, 16384, 65536}) {
#ifdef NORMD_SANITIZED
    if (boundary > 2048) continue;
#endif
    for (const std::int64_t beside : {-1, 0, 1}) {
      // Few stages for the longest rows.
      const std::int64_t step = boundary > 16384 ? 12 : boundary > 4096 ? 5 : 2;
      for (std::int64_t stage = random_.Draw(0, step - 1); stage < kStages; stage += step) {
        const StagedSpec staged =
            WithStages({Stage(stage), static_cast<Stage>(random_.Draw(0, kStages - 1))});
        if (staged.names.empty()) continue;
        CheckBatch(staged, boundary + beside, 1);
        if (HasFailure() || !unsupported_.empty()) return;
      }
    }
  }
}

// Rows around the sizes at which a device cuts them over more blocks, or no longer holds them.
TEST_P(StagesTest, RowsOfManyBlocksAgreeWithTheReference) {
#ifdef NORMD_SANITIZED
  GTEST_SKIP() << "rows of a megabyte";
#endif
  const auto element = static_cast<std::int64_t>(SizeOf(std::get<DType>(GetParam())));
  for (const std::int64_t kib : DeviceSizes({64, 128, 256, 512, 1600})) {
    const std::int64_t length = kib * 1024 / element;
    for (const std::int64_t beside : DeviceSizes({-16, 0, 16, 1})) {
      if (kib > 256 && beside < 1) continue;
      const StagedSpec staged = WithStages({static_cast<Stage>(random_.Draw(0, kStages - 1)),
                                            static_cast<Stage>(random_.Draw(0, kStages - 1))});
      if (staged.names.empty()) continue;
      CheckBatch(staged, length + beside, 1);
      if (HasFailure() || !unsupported_.empty()) return;
    }
  }
  EXPECT_GT(checked_, is_cuda() ? 5 : 0);
}

// Norms, with an activation or without, around the length from which a device spreads rows over
// blocks without the stages' kernels.
TEST_P(StagesTest, NormsOfLongRowsAgreeWithTheReference) {
#ifdef NORMD_SANITIZED
  GTEST_SKIP() << "rows of hundreds of kilobytes";
#endif
  const auto element = static_cast<std::int64_t>(SizeOf(std::get<DType>(GetParam())));
  for (const Statistics statistics :
       {Statistics::kSumOfAbsolutes, Statistics::kRootOfSquares, Statistics::kLargestAbsolute}) {
    for (const std::int64_t kib : DeviceSizes({64, 128, 400})) {
      for (const std::int64_t beside : DeviceSizes({0, 16, 1})) {
        StagedSpec staged = Plain(statistics);
        if (random_.Chance(50)) staged.Add(Stage::kActivation, random_);
        CheckBatch(staged, kib * 1024 / element + beside, random_.Draw(1, 2));
        if (HasFailure() || !unsupported_.empty()) return;
      }
    }
  }
}

// Rows of a warp, a block or a cluster that begin and end in the middle of a vector, or lie at
// addresses that do, with the stages that these need.
TEST_P(StagesTest, RowsThatAreNoWholeVectorsAgreeWithTheReference) {
  constexpr Stage kPairs[][2] = {
      {Stage::kResidual, Stage::kResidualOut},    {Stage::kResidual, Stage::kWeightOffset},
      {Stage::kResidual, Stage::kGate},           {Stage::kResidual, Stage::kScale},
      {Stage::kResidual, Stage::kActivation},     {Stage::kResidual, Stage::kStyleIndex},
      {Stage::kResidual, Stage::kRowScale},       {Stage::kWeightOffset, Stage::kStaticScale},
      {Stage::kWeightOffset, Stage::kRowScale},   {Stage::kWeightOffset, Stage::kBlockScale},
      {Stage::kInputBiasOut, Stage::kGate},       {Stage::kScale, Stage::kShift},
      {Stage::kScale, Stage::kActivation},        {Stage::kShift, Stage::kRowScale},
      {Stage::kCombineInput, Stage::kActivation}, {Stage::kCombineOutput, Stage::kBlockScale}};
  for (const std::int64_t length :
       {17, 33, 65, 201, 517, 1031, 1040, 3249, 4097, 8191, 16383, 16385, 24575, 24577, 40001}) {
#ifdef NORMD_SANITIZED
    if (length > 600) continue;  // A CPU computes longer ones alike; LongRows has some.
#endif
    if (!is_cuda() && length > 16383) continue;  // In other tests: a CPU has no blocks.
    for (const auto& [one, other] : kPairs) {
      const StagedSpec staged = WithStages({one, other});
      if (staged.names.empty()) continue;
      as_in_models_ = staged.spec.style == Style::kNone && random_.Chance(50) &&
                      staged.spec.statistics != Statistics::kGiven;
      CheckBatch(staged, length, 3);
      if (HasFailure() || !unsupported_.empty()) return;
    }
  }
  EXPECT_GT(checked_, 5);
}

// Rows of whole vectors, as in models, from those of a few lanes to the longest of a block.
TEST_P(StagesTest, InputsOfAlignedRowsAgreeWithTheReference) {
  constexpr Stage kInputs[][2] = {
      {Stage::kInputBias, Stage::kInputBias},     {Stage::kInputBiasOut, Stage::kInputBias},
      {Stage::kInputBias, Stage::kResidual},      {Stage::kInputBias, Stage::kResidualOut},
      {Stage::kInputBiasOut, Stage::kGate},       {Stage::kCombineInput, Stage::kCombineInput},
      {Stage::kResidualOut, Stage::kResidualOut}, {Stage::kCombineOutput, Stage::kCombineOutput}};
  constexpr Stage kBeside[] = {Stage::kWeightOffset, Stage::kScale,    Stage::kShift,
                               Stage::kStaticScale,  Stage::kRowScale, Stage::kBlockScale};
  const std::int64_t of_vector = 16 / static_cast<std::int64_t>(SizeOf(std::get<0>(GetParam())));
  as_in_models_ = true;
  for (const std::int64_t vectors : {3, 32, 127, 129, 257, 700, 2049, 4096}) {
#ifdef NORMD_SANITIZED
    if (vectors > 300) continue;
#endif
    for (const auto& inputs : kInputs) {
      StagedSpec staged = Plain(random_.OneOf(std::to_array(
          {Statistics::kMeanVariance, Statistics::kMeanSquare, Statistics::kSumOfAbsolutes})));
      for (const Stage input : inputs) staged.Add(input, random_);
      if (random_.Chance(40)) staged.Add(random_.OneOf(kBeside), random_);
      if (!staged.IsValid()) continue;
      staged.spec.channels = vectors * of_vector;
      staged.spec.groups = vectors < 300 && random_.Chance(30) ? 2 : 1;
      staged.spec.channels *= staged.spec.groups;
      staged.CutChannels(random_);
      CheckSegments(staged, 1, vectors > 300 ? 1 : 3, 3);
      if (HasFailure() || !unsupported_.empty()) return;
    }
  }
  EXPECT_GT(checked_, 20);
}

// Rows of whole vectors that their samples scale and shift, from those of a warp to those of
// several blocks, in batches of more segments than a launch has room for.
TEST_P(StagesTest, RowsThatTheirSamplesScaleAgreeWithTheReference) {
  const auto [dtype, layout, rows] = GetParam();
  const std::int64_t of_vector = 16 / static_cast<std::int64_t>(SizeOf(dtype));
  const bool together = layout == Layout::kChannelsLast && rows == Rows::kPosition;
  for (const std::int64_t vectors : {128, 129, 256, 257, 300, 384, 900, 1025, 3072, 4096, 4097}) {
#ifdef NORMD_SANITIZED
    if (vectors > 300) continue;
#endif
    for (const bool shift : {false, true}) {
      StagedSpec staged =
          Plain(random_.Chance(50) ? Statistics::kMeanVariance : Statistics::kMeanSquare);
      staged.spec.channels = vectors * of_vector;
      staged.spec.groups = random_.Chance(30) ? 2 : 1;
      staged.spec.scale = true;
      staged.spec.shift = shift;
      staged.spec.scale_offset = random_.Chance(50) ? 1 : 0;
      staged.CutChannels(random_);
      CheckSegments(staged, together ? random_.Draw(1, 5) : 1, 3, vectors == 129 ? 100 : 4);
      if (HasFailure() || !unsupported_.empty()) return;
    }
  }
}

// Many columns of few lines and of many, also where lines are a multiple of a page apart.
TEST_P(StagesTest, WideAndHighTilesAgreeWithTheReference) {
  const bool first = std::get<Layout>(GetParam()) == Layout::kChannelsFirst;
  for (const std::int64_t columns : {255, 256, 257, 1024, 1025, 2048, 4096}) {
    for (const std::int64_t lines : {3, 70, 300}) {
#ifdef NORMD_SANITIZED
      if (columns * lines > 100000) continue;
#else
      if (columns * lines > 400000) continue;
#endif
      StagedSpec staged = WithStages({static_cast<Stage>(random_.Draw(0, kStages - 1))});
      // Every other one plain, as it is in memory. Blocks want other shapes.
      if (staged.names.empty() || random_.Chance(50) ||
          staged.spec.quantization_scale == QuantizationScale::kBlock) {
        staged = Plain(Statistics::kMeanVariance);
      }
      staged.spec.channels = first ? lines : columns;
      const bool apart = staged.spec.style == Style::kTensor || random_.Chance(50);
      staged.spec.groups = apart ? staged.spec.channels : 1;
      staged.CutChannels(random_);
      CheckSegments(staged, first ? columns : lines, 1, 1);
      if (HasFailure() || !unsupported_.empty()) return;
    }
  }
  EXPECT_GT(checked_, 5);
}

// More tiles than a device has blocks, whose turns lead from a segment's sample to another one's:
// with scales of each sample, or with the positions of several samples in a tile.
TEST_P(StagesTest, TilesOfManySegmentsAgreeWithTheReference) {
  const auto [dtype, layout, rows] = GetParam();
  if (rows != Rows::kPosition || layout != Layout::kChannelsFirst) return;
#ifdef NORMD_SANITIZED
  constexpr std::int64_t kSpatial = 512, kSamples = 5;
#else
  constexpr std::int64_t kSpatial = 25600, kSamples = 500;
#endif
  StagedSpec staged = Plain(Statistics::kMeanVariance);
  staged.spec.channels = 80;
  staged.spec.groups = 1;
  as_in_models_ = same_spatial_ = true;
  CheckSegments(staged, 264, kSamples, 4);
  staged.Add(Stage::kScale, random_);
  staged.Add(Stage::kShift, random_);
  CheckSegments(staged, kSpatial, 1, 4);
  if (unsupported_.empty()) {
    EXPECT_EQ(checked_, 2);
  }
}

// Channels at all positions of a sample, from few bytes to more than slabs hold: with positions
// that fill vectors, halves of them or neither, fewer and more than a block has threads, and with
// channels that leave slabs short or empty.
TEST_P(StagesTest, SlabsOfPositionsAgreeWithTheReference) {
  const auto [dtype, layout, rows] = GetParam();
  if (rows != Rows::kPosition || layout != Layout::kChannelsFirst) return;
  constexpr Statistics kSumsOfSlabs[] = {Statistics::kMeanVariance, Statistics::kMeanSquare,
                                         Statistics::kRootOfSquares};
  constexpr Stage kStagesOfSlabs[] = {Stage::kResidual, Stage::kResidualOut, Stage::kScale,
                                      Stage::kShift, Stage::kCombineOutput};
  for (const std::int64_t spatial : {2, 5, 36, 49, 196, 255, 257, 784, 1031}) {
    for (const std::int64_t channels : {17, 72, 96, 250, 768, 2050}) {
#ifdef NORMD_SANITIZED
      if (channels * spatial > 100000) continue;
#else
      if (channels * spatial > 500000) continue;
#endif
      StagedSpec staged = Plain(random_.OneOf(kSumsOfSlabs));
      if (random_.Chance(60)) staged.Add(random_.OneOf(kStagesOfSlabs), random_);
      staged.spec.channels = channels;
      staged.spec.groups = channels % 2 == 0 && random_.Chance(30) ? 2 : 1;
      staged.CutChannels(random_);
      as_in_models_ = random_.Chance(50);
      CheckSegments(staged, spatial, 3, 3);
      if (HasFailure() || !unsupported_.empty()) return;
    }
  }
  EXPECT_GT(checked_, 20);
}

INSTANTIATE_TEST_SUITE_P(All, StagesTest, EveryRow(kFloatTypes), StagesName);
INSTANTIATE_TEST_SUITE_P(MixedRuns, StagesTest, EveryRowOfMixedRuns(kFloatTypes), StagesName);

}  // namespace
}  // namespace normd::norm::testing
