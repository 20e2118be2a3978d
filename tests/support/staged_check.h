// What backends computed of a segment, held against the float64 reference within bounds that follow
// from the accumulation type.

#ifndef NORMD_TESTS_SUPPORT_STAGED_CHECK_H_
#define NORMD_TESTS_SUPPORT_STAGED_CHECK_H_

#include <string>

#include "kernels/norm.h"
#include "tests/support/staged_segment.h"

namespace normd::norm::testing {

struct StagedBounds {
  // Roundings of the accumulation type that a normalized value, the statistics, and each term of
  // what follows may be off.
  double roundings = 12;
  // The mean is large against the deviation: the contract's own bound for normalized values.
  bool large_mean = false;
  // Whether a row's mean may be off by a rounding of its largest element.
  bool of_magnitude = true;
};

// Empty if each output of a segment that was prepared and computed is right; else the first that is
// not. `params` are those that count for it.
//
// The bounds are of the magnitude of the terms, not of the result, so that terms that cancel do not
// ask for more than the accumulation type has. y is compared after its rounding: an element may be
// what any float64 number within the bound becomes in y's type, or quantized. residual_out is
// exact, but where the accumulation type cannot hold the sum of three terms or a product. Where v
// is written, y is held against the v that was written.
std::string CheckStaged(const NormSpec& spec, const NormParams& params,
                        const StagedSegment& segment, const StagedBounds& bounds = {});

}  // namespace normd::norm::testing

#endif  // NORMD_TESTS_SUPPORT_STAGED_CHECK_H_
