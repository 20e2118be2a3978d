// Which tensors of a file are the parameters that a config asks for.

#ifndef NORMD_SERVER_MODEL_PARAMETERS_H_
#define NORMD_SERVER_MODEL_PARAMETERS_H_

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "normd/v1/model_config.pb.h"
#include "server/model/operation.h"
#include "server/model/parameter.h"
#include "server/model/safetensors_header.h"

namespace normd {

struct MatchedParameter {
  ExpectedParameter parameter;
  std::size_t tensor = 0;  // Among those that were given.
};

// The parameters that the file has, of those that `config`, which CheckModelConfig accepts, asks
// for: under PyTorch's names, or those of `parameter_names`, behind `parameter_prefix`. Looks at
// names, types and shapes alone, so that a file is refused before its data is read. Tensors that
// have nothing to do with the operation are passed over, whatever their type.
//
// InvalidArgument, with what came, what was wanted and what the file has, when a parameter is
// missing or of another shape or type, and when the file seems to hold parameters of this operation
// that would not be used: a load that left them out would give other numbers than PyTorch.
absl::StatusOr<std::vector<MatchedParameter>> MatchParameters(
    const v1::ModelConfig& config, absl::Span<const TensorEntry> tensors);
// The same for the rules of an operation that is already made.
absl::StatusOr<std::vector<MatchedParameter>> MatchParameters(
    const v1::ModelConfig& config, const ParameterRules& rules,
    absl::Span<const TensorEntry> tensors);

// InvalidArgument names the parameter and its first element that is NaN: with it, every response
// would have NaN, and no check of shapes and types would see why. An infinity may be meant.
absl::Status CheckNoNaN(const Parameter& parameter);

}  // namespace normd

#endif  // NORMD_SERVER_MODEL_PARAMETERS_H_
