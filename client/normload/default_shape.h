// The shape of a tensor that suits a model, for a user who names none.

#ifndef NORMD_CLIENT_NORMLOAD_DEFAULT_SHAPE_H_
#define NORMD_CLIENT_NORMLOAD_DEFAULT_SHAPE_H_

#include <optional>

#include "absl/status/statusor.h"
#include "base/shape.h"
#include "normd/v1/model_config.pb.h"

namespace normd::load {

struct DefaultShapes {
  Shape x;
  std::optional<Shape> y;  // Of a model that takes a second input.
};

// One image of 56 x 56 where the model has channels, in its layout; eight rows where it has a
// normalized shape or features. FailedPrecondition for an operation that this program does not
// know; InvalidArgument as Shape::Create.
absl::StatusOr<DefaultShapes> DefaultShapesFor(const v1::ModelConfig& config);

}  // namespace normd::load

#endif  // NORMD_CLIENT_NORMLOAD_DEFAULT_SHAPE_H_
