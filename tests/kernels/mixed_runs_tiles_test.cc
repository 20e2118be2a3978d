// Every backend: rows whose channels and positions take turns in memory, at shapes around the
// boundaries of how a device cuts them into tiles: against the float64 reference, and with the bits
// that a sample has alone in any batch and at any address.

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/kernel_backend.h"
#include "tests/support/stage.h"
#include "tests/support/staged_check.h"
#include "tests/support/staged_segment.h"
#include "tests/support/stages_fixture.h"
#include "tests/support/tensor.h"

namespace normd::norm::testing {
namespace {

constexpr Statistics kStatistics[] = {Statistics::kMeanVariance, Statistics::kMeanSquare,
                                      Statistics::kRootOfSquares};
// The stages that such rows can have beside gamma and beta.
constexpr Stage kTileStages[] = {Stage::kResidual, Stage::kResidualOut, Stage::kWeightOffset,
                                 Stage::kScale,    Stage::kShift,       Stage::kActivation};

struct Shape {
  RunSizes channels;
  RunSizes positions;
};

std::int64_t Product(const RunSizes& runs) { return runs[0] * runs[1] * runs[2] * runs[3]; }

class MixedRunsTilesTest : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (!backend_->Available()) GTEST_SKIP() << backend_->Name() << " is not available";
  }

  std::int64_t element_bytes() const { return static_cast<std::int64_t>(SizeOf(GetParam())); }

  StagedSpec Plain(const Shape& shape) {
    StagedSpec staged =
        PlainSpec(GetParam(), Layout::kMixedRuns, Rows::kPosition, random_.OneOf(kStatistics));
    staged.spec.channels = Product(shape.channels);
    staged.spec.groups = 1;
    staged.spec.channel_runs = shape.channels;
    return staged;
  }

  StagedSpec Draw(const Shape& shape) {
    StagedSpec staged = Plain(shape);
    for (std::int64_t i = random_.Draw(0, 3); i > 0; --i) {
      staged.Add(random_.OneOf(kTileStages), random_);
    }
    return staged;
  }

  void Compute(const StagedSpec& staged, const NormParams& params,
               const std::vector<Segment>& batch) {
    const Status status = backend_->Normalize(staged.spec, params, batch.data(), batch.size());
    ASSERT_TRUE(status.ok()) << status.message();
  }

  // Alone, apart from its inputs; then with others, in place, at other addresses.
  void Check(const StagedSpec& staged, const RunSizes& positions, std::int64_t samples) {
    const NormSpec& spec = staged.spec;
    SCOPED_TRACE(::testing::Message()
                 << staged.names << ", statistics " << static_cast<int>(spec.statistics)
                 << ", channels " << ::testing::PrintToString(spec.channel_runs) << ", positions "
                 << ::testing::PrintToString(positions) << ", samples " << samples);
    const StagedParams params(spec, false, random_);
    CheckWith(staged, params.View(), positions, samples);
  }

  void CheckWith(const StagedSpec& staged, const NormParams& view, const RunSizes& positions,
                 std::int64_t samples) {
    const NormSpec& spec = staged.spec;
    StagedSegment whole(spec, samples, positions, random_);
    whole.WantStatistics(random_.Chance(50));
    Compute(staged, view, {whole.Prepare()});
    if (HasFatalFailure()) return;
    EXPECT_EQ(whole.StrayWrites(), "");
    EXPECT_EQ(CheckStaged(spec, view, whole), "");

    StagedSegment again(whole, 0, samples);
    StagedSegment other(spec, random_.Draw(1, samples + 1), positions, random_);
    for (StagedSegment* segment : {&again, &other}) {
      segment->WantStatistics(random_.Chance(50));
      segment->DrawPlacement(random_);
      segment->DrawOffsets(backend_->Name() != "cuda", random_);
    }
    std::vector<Segment> batch = {other.Prepare(), again.Prepare()};
    if (random_.Chance(50)) std::swap(batch[0], batch[1]);
    Compute(staged, view, batch);
    if (HasFatalFailure()) return;
    EXPECT_EQ(again.StrayWrites(), "");
    EXPECT_EQ(other.StrayWrites(), "");
    EXPECT_EQ(again.Differences(whole, 0), "");
    EXPECT_EQ(CheckStaged(spec, view, other), "");
  }

  void CheckShape(const Shape& shape, std::int64_t samples) {
    Check(Plain(shape), shape.positions, samples);
    if (!HasFailure()) Check(Draw(shape), shape.positions, samples);
  }

  Random random_{TestSeed() + 80 + static_cast<std::uint64_t>(GetParam())};
  std::unique_ptr<KernelBackend> backend_ = MakeKernelBackend(2);
};

constexpr std::int64_t kRuns[] = {1, 2, 3, 7, 8, 16, 31, 64, 128, 224};

TEST_P(MixedRunsTilesTest, RunsOfChannelsInside) {
  for (const std::int64_t run : kRuns) {
    for (const std::int64_t lines : {2, 3, 24}) {
      for (const std::int64_t positions : {2, 5, 16, 49}) {
        CheckShape({{1, 1, lines, run}, {1, 1, positions, 1}}, random_.Draw(1, 3));
        if (HasFailure()) return;
      }
    }
  }
}

TEST_P(MixedRunsTilesTest, RunsOfPositionsInside) {
  for (const std::int64_t run : kRuns) {
    for (const std::int64_t between : {2, 5}) {
      for (const std::int64_t inner : {1, 3, 8, 40}) {
        CheckShape({{1, 1, 3, inner}, {1, 1, between, run}}, random_.Draw(1, 3));
        if (HasFailure()) return;
      }
    }
  }
}

TEST_P(MixedRunsTilesTest, ManyRunsOfEach) {
  constexpr std::array<std::int64_t, 5> kSizes = {1, 2, 3, 4, 8};
  for (int i = 0; i < 60; ++i) {
    Shape shape;
    for (std::size_t run = 0; run < kMostRuns; ++run) {
      shape.channels[run] = random_.OneOf(kSizes);
      shape.positions[run] = random_.OneOf(kSizes);
    }
    if (Product(shape.channels) * Product(shape.positions) > 100000) continue;
    CheckShape(shape, random_.Draw(1, 3));
    if (HasFailure()) return;
  }
}

// Rows that fill a tile, do not leave room for their neighbours, or come in chunks.
TEST_P(MixedRunsTilesTest, RowsAroundTheSizesOfTiles) {
  for (const std::int64_t kib : DeviceSizesFor(*backend_, {4, 8, 16, 32, 48, 64, 100, 150})) {
#ifdef NORMD_SANITIZED
    if (kib > 32) continue;
#endif
    const std::int64_t channels = kib * 1024 / element_bytes();
    for (const std::int64_t run :
         {std::int64_t{1}, std::int64_t{2}, std::int64_t{31}, std::int64_t{128}, channels / 2}) {
      for (const std::int64_t beside : {0, 1}) {
        const std::int64_t lines = channels / run + beside;
        if (run == 1) {
          CheckShape({{1, 1, lines, 1}, {1, 1, 2, random_.Chance(50) ? 16 : 9}}, 1);
        } else {
          CheckShape({{1, 1, lines, run}, {1, 1, random_.Chance(50) ? 5 : 2, 1}}, 1);
        }
        if (HasFailure()) return;
      }
    }
  }
}

// Runs that are longer than a chunk.
TEST_P(MixedRunsTilesTest, RunsThatAreCut) {
#ifdef NORMD_SANITIZED
  GTEST_SKIP() << "rows of 400 KB";
#endif
  for (const std::int64_t run : {30000, 33000, 40001, 50008}) {
    CheckShape({{1, 1, 2, run}, {1, 1, 3, 1}}, 2);
    if (HasFailure()) return;
  }
}

// The benchmark's shapes, with fewer positions, and with parameters that 16-byte loads can fetch.
TEST_P(MixedRunsTilesTest, ShapesThatAreMeasured) {
  for (const Shape& shape :
       {Shape{{1, 1, 64, 128}, {1, 1, 6, 1}}, Shape{{1, 1, 3, 224}, {1, 1, 50, 1}},
        Shape{{1, 1, 32, 16}, {1, 1, 2, 128}}}) {
    for (const DType dtype : {DType::kFloat32, GetParam()}) {
      StagedSpec staged = Plain(shape);
      const std::int64_t channels = staged.spec.channels;
      Tensor gamma(dtype, channels), beta(dtype, channels);
      FillNormal(dtype, gamma.data(), channels, random_);
      FillNormal(dtype, beta.data(), channels, random_);
      for (const bool scaled : {true, false}) {
        for (const bool shifted : {true, false}) {
          NormParams view;
          if (scaled) view.gamma = {gamma.data(), dtype};
          if (shifted) view.beta = {beta.data(), dtype};
          CheckWith(staged, view, shape.positions, 2);
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST_P(MixedRunsTilesTest, EveryStageAlone) {
  for (const Shape& shape :
       {Shape{{1, 1, 6, 56}, {1, 1, 10, 1}}, Shape{{1, 1, 6, 5}, {1, 1, 4, 24}},
        Shape{{1, 1, 6, 7}, {1, 1, 10, 1}}, Shape{{1, 1, 9, 3}, {1, 1, 3, 16}},
        Shape{{1, 1, 6001, 3}, {1, 1, 2, 16}}}) {
    for (const Stage stage : kTileStages) {
      StagedSpec staged = Plain(shape);
      staged.Add(stage, random_);
      Check(staged, shape.positions, 2);
      if (HasFailure()) return;
    }
  }
}

// The rows of a tile do not meet: what is not finite stays in its row, and large means cancel.
TEST_P(MixedRunsTilesTest, RowsDoNotMeet) {
  using S = StagedSegment;
  for (const Shape& shape :
       {Shape{{1, 1, 6, 16}, {1, 1, 10, 1}}, Shape{{1, 1, 6, 5}, {1, 1, 4, 24}},
        Shape{{1, 1, 6, 7}, {1, 1, 11, 1}}}) {
    StagedSpec staged = Plain(shape);
    const StagedParams params(staged.spec, false, random_);
    const NormParams view = params.View();
    StagedSegment clean(staged.spec, 2, shape.positions, random_);
    Compute(staged, view, {clean.Prepare()});
    StagedSegment spoilt(clean, 0, 2);
    const std::int64_t at = random_.Draw(0, spoilt.elements() - 1);
    spoilt.SetInput(S::kX, at,
                    random_.Chance(50) ? std::numeric_limits<double>::infinity()
                                       : std::numeric_limits<double>::quiet_NaN());
    Compute(staged, view, {spoilt.Prepare()});
    std::int64_t not_finite = 0;
    std::int64_t different = 0;
    for (std::int64_t i = 0; i < spoilt.elements(); ++i) {
      const double y = spoilt.OutputAt(S::kY, i);
      not_finite += std::isnan(y) ? 1 : 0;
      different += y != clean.OutputAt(S::kY, i) ? 1 : 0;
    }
    EXPECT_GT(not_finite, 0);
    EXPECT_LE(different, staged.spec.channels);
  }
}

TEST_P(MixedRunsTilesTest, LargeMeansCancel) {
  for (const Shape& shape :
       {Shape{{1, 1, 64, 128}, {1, 1, 6, 1}}, Shape{{1, 1, 64, 8}, {1, 1, 2, 32}},
        Shape{{1, 1, 300, 7}, {1, 1, 11, 1}}}) {
    StagedSpec staged = Plain(shape);
    staged.spec.statistics = Statistics::kMeanVariance;
    const StagedParams params(staged.spec, false, random_);
    const NormParams view = params.View();
    StagedSegment segment(staged.spec, 1, shape.positions, random_);
    for (std::int64_t i = 0; i < segment.elements(); ++i) {
      segment.SetInput(StagedSegment::kX, i, 100 + segment.InputAt(StagedSegment::kX, i));
    }
    Compute(staged, view, {segment.Prepare()});
    StagedBounds bounds;
    bounds.large_mean = true;
    EXPECT_EQ(CheckStaged(staged.spec, view, segment, bounds), "");
  }
}

std::string TypeName(const ::testing::TestParamInfo<DType>& info) { return Name(info.param); }

INSTANTIATE_TEST_SUITE_P(All, MixedRunsTilesTest,
                         ::testing::Values(DType::kFloat32, DType::kFloat16, DType::kBFloat16),
                         TypeName);

}  // namespace
}  // namespace normd::norm::testing
