// The contract's stages as additions to a spec, so that tests can draw pairs.

#ifndef NORMD_TESTS_SUPPORT_STAGE_H_
#define NORMD_TESTS_SUPPORT_STAGE_H_

#include <cstdint>
#include <string>

#include "kernels/norm.h"
#include "tests/support/staged_segment.h"

namespace normd::norm::testing {

enum class Stage : std::uint8_t {
  kResidual,
  kResidualOut,
  kGate,
  kInputBias,
  kInputBiasOut,
  kCombineInput,
  kWeightOffset,
  kStyleIndex,
  kStyleMix,
  kStyleTensor,
  kScale,
  kShift,
  kActivation,
  kCombineOutput,
  kStaticScale,
  kRowScale,
  kBlockScale,
};
inline constexpr int kStages = 17;

inline constexpr Statistics kEveryStatistics[] = {
    Statistics::kMeanVariance,   Statistics::kMeanSquare,    Statistics::kGiven,
    Statistics::kSumOfAbsolutes, Statistics::kRootOfSquares, Statistics::kLargestAbsolute};

// A spec that grows by stages, and what else a case needs.
struct StagedSpec {
  NormSpec spec;
  bool input_bias = false;
  std::string names;  // The names of its stages.

  // Sets the fields of a stage, and draws its variant if it has several. Not all stages go
  // together: ask IsValid.
  void Add(Stage stage, Random& random);
  bool IsValid() const;
  // With Layout::kMixedRuns: cuts the channels, which are set, into runs of one group.
  void CutChannels(Random& random);
};

// A spec without stages, whose channels and groups ChooseShape sets.
StagedSpec PlainSpec(DType dtype, Layout layout, Rows rows, Statistics statistics);

// Sets channels and groups, and returns spatial, so that rows have `length` elements, or a few more
// if they have several channels.
std::int64_t ChooseShape(std::int64_t length, StagedSpec* staged, Random& random);

}  // namespace normd::norm::testing

#endif  // NORMD_TESTS_SUPPORT_STAGE_H_
