// Compares a backend's results for a segment with the float64 reference, within bounds that follow
// from the accumulation type.

#ifndef NORMD_TESTS_SUPPORT_STAGED_CHECK_H_
#define NORMD_TESTS_SUPPORT_STAGED_CHECK_H_

#include <string>

#include "kernels/norm.h"
#include "tests/support/staged_segment.h"

namespace normd::norm::testing {

struct StagedBounds {
  // Rounding errors of the accumulation type allowed in a normalized value, the statistics, and
  // each later term.
  double roundings = 12;
  // The mean is large against the deviation: the contract's own bound for normalized values.
  bool large_mean = false;
  // Whether a row's mean may be off by a rounding of its largest element.
  bool of_magnitude = true;
};

// Empty if each output of a prepared and computed segment is right; else the first wrong one.
// `params` are those that apply to it.
//
// The bounds depend on the magnitude of the terms, not of the result, so that cancelling terms do
// not require more than the accumulation type has. y is compared after its rounding: an element may
// be the rounded or quantized form of any float64 number within the bound. residual_out is exact,
// unless the accumulation type cannot hold the sum of three terms or a product. If v is written, y
// is compared with the result for the written v.
std::string CheckStaged(const NormSpec& spec, const NormParams& params,
                        const StagedSegment& segment, const StagedBounds& bounds = {});

}  // namespace normd::norm::testing

#endif  // NORMD_TESTS_SUPPORT_STAGED_CHECK_H_
