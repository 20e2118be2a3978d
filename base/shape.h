// The shape of a tensor, and the patterns of shapes. Every size that a client sends passes through
// here, so that no product of dimensions is ever taken unchecked.

#ifndef NORMD_BASE_SHAPE_H_
#define NORMD_BASE_SHAPE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace normd {

inline constexpr int kMaxRank = 16;

// a * b for a, b >= 0; nullopt when it exceeds 63 bits.
std::optional<std::int64_t> CheckedMultiply(std::int64_t a, std::int64_t b);

// Dimensions that are known to be >= 0, at most kMaxRank of them, with a product (zeros counted as
// ones) that fits 63 bits. A value type.
class Shape {
 public:
  Shape() = default;

  // InvalidArgument for anything else; it names `shape`, the index and the value.
  static absl::StatusOr<Shape> Create(absl::Span<const std::int64_t> dims);

  absl::Span<const std::int64_t> dims() const { return dims_; }
  int rank() const { return static_cast<int>(dims_.size()); }
  std::int64_t dim(int i) const { return dims_[static_cast<std::size_t>(i)]; }

  // The number of elements; 1 for rank 0.
  std::int64_t elements() const { return Product(0, rank()); }
  // The product of the dimensions in [first, last).
  std::int64_t Product(int first, int last) const;

  // "[2, 64, 512, 512]"
  std::string ToString() const;

  friend bool operator==(const Shape& a, const Shape& b) { return a.dims_ == b.dims_; }

 private:
  absl::InlinedVector<std::int64_t, 6> dims_;
};

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

#endif  // NORMD_BASE_SHAPE_H_
