// A search for a sample whose bits depend on its company: a segment is computed alone, apart from
// its inputs and on one thread; then in a batch, in place, at other alignments, with gaps between
// samples, on several threads, with and without statistics, with parameters of its own, and in
// pieces of its samples or groups.

#ifndef NORMD_TESTS_KERNELS_STAGES_BITS_FIXTURE_H_
#define NORMD_TESTS_KERNELS_STAGES_BITS_FIXTURE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kernels/norm.h"
#include "tests/support/kernel_backend.h"
#include "tests/support/stage.h"
#include "tests/support/staged_segment.h"
#include "tests/support/stages_fixture.h"

namespace normd::norm::testing {

// Data that makes rounding visible: with rows whose elements sum to zero the mean is nothing but
// rounding, and so is a good part of x - mean with large means.
enum class Rounding {
  kNormal,
  kZeroSum,    // Pairs of a number and its negative.
  kLargeMean,  // N(1000, 1)
  kWide,       // Magnitudes over 12 powers of two.
  kUneven,     // Stretches of N(0, 1), of N(1000, 1) and of numbers whose squares overflow.
};

// Makes it of normal numbers.
inline void Reshape(Rounding kind, DType dtype, StagedSegment& segment) {
  double before = 0;
  for (std::int64_t i = 0; i < segment.elements(); ++i) {
    double x = segment.InputAt(StagedSegment::kX, i);
    switch (kind) {
      case Rounding::kNormal: return;
      case Rounding::kZeroSum:
        if (i % 2 == 1) x = -before;
        break;
      case Rounding::kLargeMean: x += 1000; break;
      case Rounding::kWide: x = std::ldexp(x, static_cast<int>(7 * i % 12)); break;
      case Rounding::kUneven:
        if (i / 64 % 8 == 3) x += 1000;
        if (i / 64 % 8 == 6) x *= dtype == DType::kFloat16 ? 1e3 : 1e25;
        if (i % 61 == 7) x = i % 2 == 0 ? 0.0 : -0.0;
    }
    segment.SetInput(StagedSegment::kX, i, x);
    before = x;
  }
}

class StagesBitsTest : public StagesFixture {
 protected:
  StagesBitsTest() : StagesFixture(/*threads=*/1) {}

  // None to four stages that go together.
  StagedSpec DrawSpec() {
    StagedSpec staged;
    do {
      staged = Plain(random_.OneOf(kEveryStatistics));
    } while (!staged.IsValid());
    for (std::int64_t i = random_.Draw(0, 4); i > 0; --i) {
      StagedSpec more = staged;
      more.Add(static_cast<Stage>(random_.Draw(0, kStages - 1)), random_);
      if (more.IsValid()) staged = more;
    }
    return staged;
  }

  // False if the backend lacks it.
  bool Compute(KernelBackend& backend, const NormSpec& spec, const NormParams& params,
               const std::vector<Segment>& batch) {
    const Status status = backend.Normalize(spec, params, batch.data(), batch.size());
    if (status.code() == StatusCode::kUnsupported) {
      unsupported_ = status.message();
      return false;
    }
    EXPECT_TRUE(status.ok()) << status.message();
    return status.ok();
  }

  void Vary(StagedSegment& segment) {
    segment.WantStatistics(random_.Chance(50));
    segment.DrawPlacement(random_);
    segment.DrawGaps(random_);
    segment.DrawOffsets(!is_cuda(), random_);
  }

  void CheckInABatch(const NormSpec& spec, const NormParams& params, const StagedSegment& whole) {
    StagedSegment again(whole, 0, whole.samples());
    Vary(again);
    std::vector<StagedSegment> others;
    for (std::int64_t i = random_.Draw(0, 2); i > 0; --i) {
      const bool blocks = spec.quantization_scale == QuantizationScale::kBlock;
      // Longer than the row too, where no stage makes that slow.
      const bool plain = spec.activation == Activation::kNone && !spec.takes_other();
      const std::int64_t most = plain ? std::clamp<std::int64_t>(2 * whole.spatial(), 2, 20000)
                                      : std::min<std::int64_t>(whole.spatial(), 100);
      others.emplace_back(spec, random_.Draw(0, 2),
                          blocks ? whole.spatial() : random_.Draw(0, most), random_.Draw(1, 20),
                          random_);
      Vary(others.back());
    }
    // Parameters of a segment's own take the place of the batch's.
    const bool own = random_.Chance(30);
    const StagedParams drawn(spec, params.input_bias.data != nullptr, random_);
    std::vector<Segment> batch;
    for (StagedSegment& other : others) batch.push_back(other.Prepare());
    batch.insert(batch.begin() + random_.Draw(0, static_cast<std::int64_t>(batch.size())),
                 again.Prepare(own ? &params : nullptr));
    KernelBackend& backend = random_.Chance(50) ? *three_ : *backend_;
    ASSERT_TRUE(Compute(backend, spec, own ? drawn.View() : params, batch));
    EXPECT_EQ(again.Differences(whole, 0), "") << "in a batch of " << batch.size();
    EXPECT_EQ(again.StrayWrites(), "");
    for (const StagedSegment& other : others) EXPECT_EQ(other.StrayWrites(), "");
  }

  void CheckInPieces(const NormSpec& spec, const NormParams& params, const StagedSegment& whole) {
    for (std::int64_t first = 0; first < whole.samples();) {
      const std::int64_t samples = random_.Draw(1, whole.samples() - first);
      StagedSegment piece(whole, first, samples);
      Vary(piece);
      ASSERT_TRUE(Compute(*three_, spec, params, {piece.Prepare()}));
      EXPECT_EQ(piece.Differences(whole, first), "") << samples << " samples from " << first;
      EXPECT_EQ(piece.StrayWrites(), "");
      first += samples;
    }
  }

  // The first sample in calls that cover some of its groups each, as a stream cuts it.
  void CheckInGroups(const NormSpec& spec, const NormParams& params, const StagedSegment& whole) {
    const std::int64_t channels = spec.channels / spec.groups;
    for (std::int64_t first = 0; first < spec.groups;) {
      NormSpec of_groups = spec;
      of_groups.groups = random_.Draw(1, spec.groups - first);
      of_groups.channels = of_groups.groups * channels;
      NormParams part = params;
      for (ParamVector* param : {&part.gamma, &part.beta, &part.mean, &part.variance}) {
        if (param->data == nullptr) continue;
        param->data = static_cast<const char*>(param->data) +
                      first * channels * static_cast<std::int64_t>(SizeOf(param->dtype));
      }
      StagedSegment piece(of_groups, 1, whole.spatial(), 0, random_);
      const std::int64_t at = first * channels * whole.spatial();
      for (std::int64_t i = 0; i < piece.elements(); ++i) {
        piece.SetInput(StagedSegment::kX, i, whole.InputAt(StagedSegment::kX, at + i));
      }
      Vary(piece);
      ASSERT_TRUE(Compute(*three_, of_groups, part, {piece.Prepare()}));
      const std::size_t element = SizeOf(spec.dtype);
      EXPECT_EQ(std::memcmp(piece.output(StagedSegment::kY),
                            static_cast<const char*>(whole.output(StagedSegment::kY)) +
                                static_cast<std::size_t>(at) * element,
                            static_cast<std::size_t>(piece.elements()) * element),
                0)
          << of_groups.groups << " groups from " << first;
      EXPECT_EQ(piece.StrayWrites(), "");
      first += of_groups.groups;
    }
  }

  void Check(std::int64_t length) {
    StagedSpec staged = DrawSpec();
    const std::int64_t spatial = ChooseShape(length, &staged, random_);
    Check(staged, length > 10000 ? 2 : random_.Draw(1, 5), spatial);
  }

  void Check(const StagedSpec& staged, std::int64_t samples, std::int64_t spatial) {
    Check(staged, StagedParams(staged.spec, staged.input_bias, random_), samples, spatial);
  }

  void Check(const StagedSpec& staged, const StagedParams& params, std::int64_t samples,
             std::int64_t spatial, Rounding rounding = Rounding::kNormal) {
    const NormSpec& spec = staged.spec;
    SCOPED_TRACE(::testing::Message()
                 << backend_->Name() << ", " << staged.names << ", statistics "
                 << static_cast<int>(spec.statistics) << ", groups " << spec.groups << " of "
                 << spec.channels << " channels, spatial " << spatial);
    const NormParams view = params.View();
    // A style tensor's rows are whole vectors in half of the cases.
    const std::int64_t style_spatial =
        random_.Chance(50) ? 8 * random_.Draw(1, 600) : random_.Draw(1, 3000);
    StagedSegment whole(spec, samples, spatial, style_spatial, random_);
    Reshape(rounding, spec.dtype, whole);
    whole.WantStatistics(random_.Chance(50));
    if (!Compute(*backend_, spec, view, {whole.Prepare()})) return;
    CheckInABatch(spec, view, whole);
    CheckInPieces(spec, view, whole);
    if (IsPlain(spec, view) && !spec.residual && spec.layout == Layout::kChannelsFirst) {
      CheckInGroups(spec, view, whole);
    }
  }

  // A segment of so many samples that what scales and shifts them is not worked out at once.
  void CheckManySamples(Stage stage) {
    constexpr std::int64_t kChannels = 3000;
    StagedSpec staged;
    for (int draws = 0; draws == 0 || !staged.IsValid(); ++draws) {
      if (draws == 100) return;  // A style tensor with rows at positions, say.
      staged = DrawSpec();
      staged.Add(stage, random_);
    }
    NormSpec& spec = staged.spec;
    spec.channels = kChannels;
    spec.groups = spec.style == Style::kTensor ? kChannels : random_.OneOf(std::to_array({1, 3}));
    staged.CutChannels(random_);
    if (spec.styles > 0) spec.styles = 3;
    SCOPED_TRACE(staged.names);
    const StagedParams params(spec, staged.input_bias, random_);
    const NormParams view = params.View();
    const bool blocks = spec.quantization_scale == QuantizationScale::kBlock;
    StagedSegment whole(spec, 2 * (256 << 10) / kChannels + random_.Draw(1, 5),
                        blocks ? 1 : random_.Draw(1, 2), 2, random_);
    whole.WantStatistics(random_.Chance(50));
    if (!Compute(*backend_, spec, view, {whole.Prepare()})) return;
    CheckInPieces(spec, view, whole);
  }

  Random random_{SeedOf(71)};
  std::unique_ptr<KernelBackend> three_ = MakeKernelBackend(3);
};

}  // namespace normd::norm::testing

#endif  // NORMD_TESTS_KERNELS_STAGES_BITS_FIXTURE_H_
