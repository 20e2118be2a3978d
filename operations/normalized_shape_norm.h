// Norms over the trailing dimensions of tensors [*, normalized shape].

#ifndef NORMD_OPERATIONS_NORMALIZED_SHAPE_NORM_H_
#define NORMD_OPERATIONS_NORMALIZED_SHAPE_NORM_H_

#include "operations/norm_operation.h"

namespace normd {

// Each parameter has the normalized shape.
class NormalizedShapeNorm : public NormOperation {
 public:
  // `normalized` is checked, and `norm` has as many channels as it has elements.
  NormalizedShapeNorm(const v1::ModelConfig& config, const NormCase& norm,
                      absl::Span<const std::int64_t> normalized);

  bool has_channels() const final { return false; }

 private:
  absl::Status Divide(const Shape& x, Geometry& geometry) const final;
  Dims RowDims(const Shape& x) const final;

  const Shape normalized_;
};

// The product of checked dimensions.
std::int64_t ElementsOf(absl::Span<const std::int64_t> normalized);

}  // namespace normd

#endif  // NORMD_OPERATIONS_NORMALIZED_SHAPE_NORM_H_
