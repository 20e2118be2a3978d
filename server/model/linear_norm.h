// The fused layer as a config and requests describe it.

#ifndef NORMD_SERVER_MODEL_LINEAR_NORM_H_
#define NORMD_SERVER_MODEL_LINEAR_NORM_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/shape.h"
#include "kernels/linear_norm.h"
#include "normd/v1/model_config.pb.h"
#include "server/model/model.h"

namespace normd {

// Of one weight: 4 TiB of float32.
inline constexpr std::int64_t kMaxLinearWeights = std::int64_t{1} << 40;

// InvalidArgument names the first field of `linear_norm` that is wrong.
absl::Status CheckLinearNorm(const v1::LinearNorm& operation);

// The kernels' precision; kFloat32 for PRECISION_UNSPECIFIED. InvalidArgument: "precision: ...".
absl::StatusOr<norm::Precision> ToPrecision(v1::Precision precision);

// Of a config that CheckModelConfig accepts; the dtype is left at its default.
norm::LinearNormSpec MakeLinearSpec(const v1::ModelConfig& config);

// How x and, where the epilogue needs it, y divide: one row a sample. InvalidArgument as
// Model::Check; with two inputs it names the input.
absl::StatusOr<Geometry> FitLinear(const norm::LinearNormSpec& spec,
                                   absl::Span<const TensorType> inputs);

// [*, out_features] for x [*, in_features]. InvalidArgument when it has over 2^63 elements.
absl::StatusOr<Shape> LinearOutputShape(const norm::LinearNormSpec& spec, const Shape& x);

}  // namespace normd

#endif  // NORMD_SERVER_MODEL_LINEAR_NORM_H_
