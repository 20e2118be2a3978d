// Every backend: the bits of rows without stages, for which it has ways of its own, depend on the
// sample alone, and those of a sum on the sum alone.

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/kernels/stages_bits_fixture.h"

namespace normd::norm::testing {
namespace {

// Around what both backends' sources name as the ends of paths, chunks, parts and slices: some in
// elements, some in bytes.
std::vector<std::int64_t> RowLengths(DType dtype) {
  const auto element = static_cast<std::int64_t>(SizeOf(dtype));
  std::vector<std::int64_t> lengths = {1, 2, 3, 7, 31, 33, 100};
  for (const std::int64_t boundary :
       {std::int64_t{256}, std::int64_t{2048}, std::int64_t{16384}, std::int64_t{65536},
        (2 << 10) / element, (64 << 10) / element, (128 << 10) / element}) {
    for (const std::int64_t beside : {-1, 0, 1}) lengths.push_back(boundary + beside);
  }
  for (const std::int64_t length :
       {std::int64_t{16512}, std::int64_t{60002}, std::int64_t{131072}, (1 << 20) / element}) {
    lengths.push_back(length);
  }
#ifdef NORMD_SANITIZED
  // Several times slower there, which looks for other things than bits: no row of many chunks.
  std::erase_if(lengths, [](std::int64_t length) { return length > 16512; });
#endif
  return lengths;
}

class PlainBitsTest : public StagesBitsTest {};

TEST_P(PlainBitsTest, PlainRowsHaveTheSameBitsInAnyCompany) {
  constexpr Rounding kRoundings[] = {Rounding::kZeroSum, Rounding::kLargeMean, Rounding::kWide,
                                     Rounding::kUneven};
  for (const std::int64_t length : RowLengths(dtype())) {
    for (const Statistics statistics :
         {Statistics::kMeanVariance, Statistics::kMeanSquare, Statistics::kGiven}) {
      // Without an activation there are more ways to compute a row of several chunks.
      for (int plain = length > 16384 && length < 100000 ? 3 : 1; plain >= 0; --plain) {
        StagedSpec staged = Plain(statistics);
        if (!staged.IsValid()) continue;
        if (plain == 0) staged.Add(Stage::kActivation, random_);
        const std::int64_t spatial = ChooseShape(length, &staged, random_);
        if (length > 20000 && staged.spec.layout != Layout::kMixedRuns) {
          staged.spec.groups *= 2;
          staged.spec.channels *= 2;
        }
        Check(staged, StagedParams(staged.spec, false, random_),
              length > 10000 ? 1 : random_.Draw(1, 4), spatial, random_.OneOf(kRoundings));
        if (HasFailure() || !unsupported_.empty()) return;
      }
    }
  }
}

TEST_P(PlainBitsTest, AResidualHasTheBitsOfItsSum) {
  using S = StagedSegment;
  if (is_cuda()) GTEST_SKIP() << "has kernels of their own for rows with a residual";
  if (std::get<Rows>(GetParam()) == Rows::kPosition) GTEST_SKIP() << "only within bounds";
  for (const std::int64_t length :
       {1, 2, 7, 16, 33, 255, 256, 257, 2048, 2049, 16383, 16385, 65537}) {
#ifdef NORMD_SANITIZED
    if (length > 2049) continue;
#endif
    for (const Statistics statistics :
         {Statistics::kMeanVariance, Statistics::kMeanSquare, Statistics::kGiven}) {
      for (const Stage residual : {Stage::kResidual, Stage::kResidualOut}) {
        StagedSpec staged = Plain(statistics);
        if (!staged.IsValid()) continue;
        if (random_.Chance(33)) staged.Add(Stage::kActivation, random_);
        const std::int64_t spatial = ChooseShape(length, &staged, random_);
        const NormSpec plain = staged.spec;
        staged.Add(residual, random_);
        SCOPED_TRACE(::testing::Message() << staged.names << ", groups " << plain.groups << " of "
                                          << plain.channels << ", spatial " << spatial);
        const StagedParams params(plain, false, random_);
        S apart(staged.spec, random_.Draw(1, length > 300 ? 2 : 5), spatial, 0, random_);
        S sum(plain, apart.samples(), spatial, 0, random_);
        for (std::int64_t i = 0; i < sum.elements(); ++i) {
          apart.SetInput(S::kResidual, i, 300 * apart.InputAt(S::kResidual, i));
          sum.SetInput(S::kX, i, apart.InputAt(S::kX, i) + apart.InputAt(S::kResidual, i));
        }
        Vary(apart);
        ASSERT_TRUE(Compute(*three_, staged.spec, params.View(), {apart.Prepare()}));
        ASSERT_TRUE(Compute(*backend_, plain, params.View(), {sum.Prepare()}));
        EXPECT_EQ(apart.Differences(sum, 0), "");
        EXPECT_EQ(apart.StrayWrites(), "");
        for (std::int64_t i = 0; staged.spec.residual_out && i < sum.elements(); ++i) {
          ASSERT_EQ(apart.OutputAt(S::kResidualOut, i), sum.InputAt(S::kX, i)) << i;
        }
        if (HasFailure()) return;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, PlainBitsTest, EveryRow(kFloatTypes), StagesName);
INSTANTIATE_TEST_SUITE_P(MixedRuns, PlainBitsTest, EveryRowOfMixedRuns(kFloatTypes), StagesName);

}  // namespace
}  // namespace normd::norm::testing
