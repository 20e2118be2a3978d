// The shapes that a tensor of a model may have, as a list of numbers like a shape's.

#ifndef NORMD_BASE_SHAPE_PATTERN_H_
#define NORMD_BASE_SHAPE_PATTERN_H_

#include <cstdint>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"

namespace normd {

// The special values of a pattern, in place of sizes. norm_service.proto (TensorInfo) says the same
// to clients.
inline constexpr std::int64_t kAnySize = -1;        // One dimension of any size.
inline constexpr std::int64_t kAnyDimensions = -2;  // Any number of them, also none.
inline constexpr std::int64_t kOwnDimensions = -3;  // The same, independent of the other tensors.

// Sizes, kAnySize and, at most once, kAnyDimensions or kOwnDimensions. Images are {kAnySize, 64,
// kAnyDimensions}, rows are {kAnyDimensions, 4096}.
using ShapePattern = absl::InlinedVector<std::int64_t, 4>;

// "[?, 64, *]", or with dimensions of its own "[?, 64, *']"; unknown numbers are printed as they
// are.
std::string PatternText(absl::Span<const std::int64_t> pattern);

}  // namespace normd

#endif  // NORMD_BASE_SHAPE_PATTERN_H_
