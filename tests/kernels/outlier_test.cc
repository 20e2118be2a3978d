// Every backend against the float64 reference for rows that hold outliers: one, two of opposite
// signs, or a run or a period of them, at the places where a backend's sums may begin, over sizes,
// lengths around the boundaries of plans, layouts, types and stages. The mean and the deviation of
// such a row are right to some roundings, and so is every other element, which the outlier leaves
// near zero.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <tuple>
#include <vector>

#include "kernels/mixed_runs.h"
#include "tests/support/kernel_backend.h"
#include "tests/support/stage.h"
#include "tests/support/staged_check.h"
#include "tests/support/staged_segment.h"
#include "tests/support/stages_fixture.h"
#include "tests/support/tensor.h"

namespace normd::norm::testing {
namespace {

using Row = std::vector<std::int64_t>;  // The places of its elements in a sample, ascending.

std::vector<Row> RowsOf(const NormSpec& spec, const StagedSegment& segment) {
  const std::int64_t spatial = segment.spatial();
  const MixedRuns places = {spec.channel_runs, segment.spatial_runs()};
  std::vector<Row> rows(static_cast<std::size_t>(RowsOfSample(spec, spatial)));
  for (std::int64_t i = 0; i < spec.channels * spatial; ++i) {
    std::int64_t channel = i % spec.channels, position = i / spec.channels;
    if (spec.layout == Layout::kChannelsFirst) channel = i / spatial, position = i % spatial;
    if (spec.layout == Layout::kMixedRuns) {
      channel = places.ChannelAt(i), position = places.PositionAt(i);
    }
    const std::int64_t group = channel / (spec.channels / spec.groups);
    const bool of_group = spec.rows == Rows::kGroup;
    rows[static_cast<std::size_t>(of_group ? group : group * spatial + position)].push_back(i);
  }
  return rows;
}

class OutlierTest : public StagesFixture {
 protected:
  // With up to two stages that read or follow the sums.
  StagedSpec DrawSpec() {
    constexpr Stage kOthers[] = {Stage::kResidual,     Stage::kResidualOut, Stage::kScale,
                                 Stage::kShift,        Stage::kActivation,  Stage::kCombineInput,
                                 Stage::kStaticScale,  Stage::kRowScale,    Stage::kStyleIndex,
                                 Stage::kWeightOffset, Stage::kInputBias,   Stage::kCombineOutput};
    for (;;) {
      StagedSpec staged =
          PlainSpec(dtype(), std::get<Layout>(GetParam()), std::get<Rows>(GetParam()),
                    random_.Chance(80) ? Statistics::kMeanVariance : Statistics::kMeanSquare);
      for (std::int64_t i = random_.Chance(50) ? 0 : random_.Draw(1, 2); i > 0; --i) {
        staged.Add(random_.OneOf(kOthers), random_);
      }
      if (staged.IsValid()) return staged;
    }
  }

  double DrawSize() {
    const double sign = random_.Chance(50) ? 1 : -1;
    if (dtype() == DType::kFloat16) {
      return sign * random_.OneOf(std::to_array<double>({50, 1000, 30000, 60000}));
    }
    // CUDA's sums of squares have no more room.
    const double most = is_cuda() ? 1e17 : 1e30;
    return sign * random_.OneOf(std::to_array<double>({50, 1000, 30000, 1e6, 1e12, most}));
  }

  // Where a lane's, a warp's, a block's or a chunk's part begins, or anywhere.
  std::int64_t DrawPlace(std::int64_t length) {
    const std::int64_t part = std::int64_t{1} << random_.Draw(3, 16);
    const std::int64_t places[] = {0,
                                   0,
                                   1,
                                   2,
                                   7,
                                   8,
                                   length / 2,
                                   length - 1,
                                   random_.Draw(0, length - 1),
                                   part * random_.Draw(0, length / part),
                                   part * random_.Draw(0, length / part) + 1};
    return std::clamp<std::int64_t>(random_.OneOf(places), 0, length - 1);
  }

  void SpoilRow(const Row& row, std::int64_t sample_begin, StagedSegment* segment) {
    const auto length = static_cast<std::int64_t>(row.size());
    const auto set = [&](std::int64_t place, double value) {
      if (place >= length) return;
      segment->SetInput(StagedSegment::kX, sample_begin + row[static_cast<std::size_t>(place)],
                        value);
    };
    const std::int64_t first = DrawPlace(length);
    const double size = DrawSize();
    const std::int64_t pattern = random_.Draw(0, 99);
    if (pattern < 2) {
      set(first, pattern == 0 ? std::numeric_limits<double>::quiet_NaN()
                              : std::copysign(std::numeric_limits<double>::infinity(), size));
      return;
    }
    set(first, size);
    if (pattern < 35) return;
    if (pattern < 50) return set(first + 1, -size);
    if (pattern < 65) return set(DrawPlace(length), -size);
    if (pattern < 75) return set(DrawPlace(length), DrawSize());
    const std::int64_t step = pattern < 88 ? 1 : std::int64_t{1} << random_.Draw(3, 12);
    for (std::int64_t i = 1; i < 8; ++i) set(first + i * step, size);
  }

  void Compute(const StagedSpec& staged, const NormParams& params, StagedSegment* segment) {
    segment->DrawPlacement(random_);
    segment->DrawOffsets(!is_cuda(), random_);
    const Segment prepared = segment->Prepare();
    const Status status = backend_->Normalize(staged.spec, params, &prepared, 1);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(segment->StrayWrites(), "");
  }

  // Segments of rows of about `length`; fewer where each has the rows of many positions.
  void CheckRows(std::int64_t length, int segments, std::int64_t samples) {
    const bool of_positions = std::get<Rows>(GetParam()) == Rows::kPosition;
    for (int i = of_positions ? segments / 2 : 0; i < segments && !HasFailure(); ++i) {
      CheckSegment(length, of_positions ? (samples + 1) / 2 : samples);
    }
  }

  void CheckSegment(std::int64_t length, std::int64_t samples) {
    StagedSpec staged = DrawSpec();
    const std::int64_t spatial = ChooseShape(length, &staged, random_);
    const NormSpec& spec = staged.spec;
    SCOPED_TRACE(::testing::Message()
                 << backend_->Name() << ", " << staged.names << ", statistics "
                 << static_cast<int>(spec.statistics) << ", groups " << spec.groups << " of "
                 << spec.channels << " channels, spatial " << spatial);
    const StagedParams params(spec, staged.input_bias, random_);
    StagedSegment segment(spec, samples, spatial, 1, random_);
    const std::vector<Row> rows = RowsOf(spec, segment);
    for (std::int64_t n = 0; n < samples; ++n) {
      for (const Row& row : rows) SpoilRow(row, n * spec.channels * spatial, &segment);
    }
    segment.WantStatistics(random_.Chance(70));
    ASSERT_NO_FATAL_FAILURE(Compute(staged, params.View(), &segment));
    StagedBounds bounds;
    bounds.roundings = 16;
    bounds.of_magnitude = false;
    EXPECT_EQ(CheckStaged(spec, params.View(), segment, bounds), "");
    // Alone, and at other addresses, a sample has the same bits.
    const std::int64_t one = random_.Draw(0, samples - 1);
    StagedSegment alone(segment, one, 1);
    ASSERT_NO_FATAL_FAILURE(Compute(staged, params.View(), &alone));
    EXPECT_EQ(alone.Differences(segment, one), "");
  }

  Random random_{TestSeed() + 1000 * static_cast<std::uint64_t>(std::get<DType>(GetParam())) +
                 10 * static_cast<std::uint64_t>(std::get<Layout>(GetParam())) +
                 static_cast<std::uint64_t>(std::get<Rows>(GetParam()))};
};

TEST_P(OutlierTest, RowsOfLanesAgreeWithTheReference) {
  for (const std::int64_t length : {1,  2,  3,   7,   8,   9,   15,  16,  17,  31,  33,  49,
                                    64, 96, 100, 127, 128, 129, 200, 255, 256, 257, 384, 500}) {
    CheckRows(length, 6, 3);
  }
}

TEST_P(OutlierTest, RowsOfWarpsAndBlocksAgreeWithTheReference) {
  for (const std::int64_t length :
       {511,   512,   513,   768,   1000,  1023,  1024,  1025,  1152, 2047,
        2048,  2049,  3249,  4095,  4096,  4097,  7168,  8191,  8192, 10000,
        12288, 16383, 16384, 16385, 20000, 20001, 30000, 32767, 32768}) {
    CheckRows(length, length < 4000 ? 4 : 2, 2);
  }
}

TEST_P(OutlierTest, RowsOfSeveralBlocksAgreeWithTheReference) {
#ifdef NORMD_SANITIZED
  GTEST_SKIP() << "rows of a megabyte";
#endif
  for (const std::int64_t length :
       {32769, 40001, 49152, 65535, 65536, 65537, 70000, 131072, 262144, 393217, 500000}) {
    CheckRows(length, length < 100000 ? 2 : 1, 1);
  }
}

// The reference itself is in float64.
constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};
INSTANTIATE_TEST_SUITE_P(All, OutlierTest, EveryRow(kTypes), StagesName);
INSTANTIATE_TEST_SUITE_P(MixedRuns, OutlierTest, EveryRowOfMixedRuns(kTypes), StagesName);

}  // namespace
}  // namespace normd::norm::testing
