// Norms over dimensions that need not be the last ones.

#ifndef NORMD_SERVER_MODEL_OPERATIONS_AXES_NORM_H_
#define NORMD_SERVER_MODEL_OPERATIONS_AXES_NORM_H_

#include <memory>

#include "absl/status/statusor.h"
#include "server/model/operations/normalized_shape_norm.h"

namespace normd {

// Tensors [leading dimensions, normalized shape, *]: each index of the leading and of the trailing
// dimensions has a row. Each parameter has the normalized shape.
class AxesNorm final : public NormOperation {
 public:
  // `first_axis` is at least 1; `normalized` is checked, and `norm` has as many channels as it has
  // elements.
  AxesNorm(const v1::ModelConfig& config, const NormCase& norm,
           absl::Span<const std::int64_t> normalized, std::int64_t first_axis);

  bool has_channels() const override { return false; }

 private:
  absl::Status Divide(const Shape& x, Geometry& geometry) const override;
  Dims RowDims(const Shape& x) const override;

  const Shape normalized_;
  const int first_axis_;
};

// The axes of a message: the first one, or 0 where they are the last dimensions. InvalidArgument
// names the field unless they are as many as `normalized` has, one after the other, and none of
// them is the first dimension, that of the samples.
absl::StatusOr<std::int64_t> FirstAxis(absl::string_view operation,
                                       absl::Span<const std::int64_t> axes,
                                       absl::Span<const std::int64_t> normalized);

// The operation of a checked message with the fields normalized_shape and axes.
template <typename Message>
absl::StatusOr<std::unique_ptr<Operation>> MakeNormOverAxes(absl::string_view operation,
                                                            const v1::ModelConfig& config,
                                                            const Message& message,
                                                            const NormCase& norm) {
  const auto& normalized = message.normalized_shape();
  const absl::StatusOr<std::int64_t> first = FirstAxis(operation, message.axes(), normalized);
  if (!first.ok()) return first.status();
  if (*first == 0) return std::make_unique<NormalizedShapeNorm>(config, norm, normalized);
  return std::make_unique<AxesNorm>(config, norm, normalized, *first);
}

}  // namespace normd

#endif  // NORMD_SERVER_MODEL_OPERATIONS_AXES_NORM_H_
