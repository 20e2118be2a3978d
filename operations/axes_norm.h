// Norms over dimensions that need not be the last ones.

#ifndef NORMD_OPERATIONS_AXES_NORM_H_
#define NORMD_OPERATIONS_AXES_NORM_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "operations/normalized_shape_norm.h"

namespace normd {

// Tensors whose dimensions `axes` have the normalized shape, in its order: each index of the other
// dimensions has a row. The dimensions before the first axis count samples. Each parameter has the
// normalized shape.
class AxesNorm final : public NormOperation {
 public:
  // `axes` are those of CheckAxes, not empty; `normalized` is checked, and `norm` has as many
  // channels as it has elements.
  AxesNorm(const v1::ModelConfig& config, const NormCase& norm,
           absl::Span<const std::int64_t> normalized, std::vector<int> axes);

  bool has_channels() const override { return false; }

 private:
  absl::Status Divide(const Shape& x, Geometry& geometry) const override;
  Dims RowDims(const Shape& x) const override;

  // Negative where x has too few dimensions.
  int AxisIn(const Shape& x, std::size_t i) const;

  const Shape normalized_;
  const std::vector<int> axes_;
};

// The axes of a message; empty if they are the last dimensions. InvalidArgument names the field
// unless there are as many as in `normalized`, they ascend, all count from the front or all from
// the end, they exclude the first dimension, that of the samples, and they have few gaps.
absl::StatusOr<std::vector<int>> CheckAxes(absl::string_view operation,
                                           absl::Span<const std::int64_t> axes,
                                           absl::Span<const std::int64_t> normalized);

// The operation of a checked message with the fields normalized_shape and axes.
template <typename Message>
absl::StatusOr<std::unique_ptr<Operation>> MakeNormOverAxes(absl::string_view operation,
                                                            const v1::ModelConfig& config,
                                                            const Message& message,
                                                            const NormCase& norm) {
  const auto& normalized = message.normalized_shape();
  absl::StatusOr<std::vector<int>> axes = CheckAxes(operation, message.axes(), normalized);
  if (!axes.ok()) return axes.status();
  if (axes->empty()) return std::make_unique<NormalizedShapeNorm>(config, norm, normalized);
  return std::make_unique<AxesNorm>(config, norm, normalized, *std::move(axes));
}

}  // namespace normd

#endif  // NORMD_OPERATIONS_AXES_NORM_H_
