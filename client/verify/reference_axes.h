// Norms over dimensions that a config names, negative ones counted from the end.

#ifndef NORMD_CLIENT_VERIFY_REFERENCE_AXES_H_
#define NORMD_CLIENT_VERIFY_REFERENCE_AXES_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/shape.h"
#include "kernels/norm.h"

namespace normd::client {

// Sets what follows for the spec. InvalidArgument unless there is an axis for each normalized
// dimension, in as many runs of adjacent ones as the kernels know.
absl::Status SetAxes(const std::vector<int>& axes, absl::Span<const std::int64_t> normalized,
                     norm::NormSpec& spec);

// The counts of x. InvalidArgument unless its dimensions there are the normalized ones.
absl::StatusOr<norm::Segment> SegmentOverAxes(const std::vector<int>& axes,
                                              absl::Span<const std::int64_t> normalized,
                                              const Shape& x);

// The shape of one value for each row of x.
std::vector<std::int64_t> RowDimsOverAxes(const std::vector<int>& axes, const Shape& x);

}  // namespace normd::client

#endif  // NORMD_CLIENT_VERIFY_REFERENCE_AXES_H_
