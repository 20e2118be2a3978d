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

// Sets the spec's fields that follow from the axes. InvalidArgument unless there is an axis for
// each normalized dimension, in no more runs of adjacent ones than the kernels support.
absl::Status SetAxes(const std::vector<int>& axes, absl::Span<const std::int64_t> normalized,
                     norm::NormSpec& spec);

// The counts of x. InvalidArgument unless its dimensions at the axes are the normalized ones.
absl::StatusOr<norm::Segment> SegmentOverAxes(const std::vector<int>& axes,
                                              absl::Span<const std::int64_t> normalized,
                                              const Shape& x);

// The shape of one value for each row of x.
std::vector<std::int64_t> RowDimsOverAxes(const std::vector<int>& axes, const Shape& x);

}  // namespace normd::client

#endif  // NORMD_CLIENT_VERIFY_REFERENCE_AXES_H_
