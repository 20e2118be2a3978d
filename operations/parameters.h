// Matches a file's tensors to the parameters that a config asks for.

#ifndef NORMD_OPERATIONS_PARAMETERS_H_
#define NORMD_OPERATIONS_PARAMETERS_H_

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/file.h"
#include "normd/v1/model_config.pb.h"
#include "operations/operation.h"
#include "operations/parameter.h"
#include "operations/safetensors_header.h"

namespace normd {

struct MatchedParameter {
  ExpectedParameter parameter;
  std::size_t tensor = 0;  // Index into the given tensors.
};

// The file's parameters for `config`, which CheckModelConfig accepts: under PyTorch's names, or
// those of `parameter_names`, after `parameter_prefix`. Reads only names, types and shapes, so that
// a file is refused before its data is read. Ignores tensors that have nothing to do with the
// operation, whatever their type.
//
// InvalidArgument, with what came, what was wanted and the file's tensors, when a parameter is
// missing or of another shape or type, and when the file seems to have parameters of this operation
// that would not be used: ignoring them would give other numbers than PyTorch.
absl::StatusOr<std::vector<MatchedParameter>> MatchParameters(
    const v1::ModelConfig& config, absl::Span<const TensorEntry> tensors);
// The same for the rules of an existing operation.
absl::StatusOr<std::vector<MatchedParameter>> MatchParameters(
    const v1::ModelConfig& config, const ParameterRules& rules,
    absl::Span<const TensorEntry> tensors);

// InvalidArgument names the parameter and its first NaN: with it, every response would have NaN,
// and no check of shapes and types would show why. An infinity may be intended.
absl::Status CheckNoNaN(const Parameter& parameter);

// Reads the parameters that MatchParameters finds in a safetensors file. All that can be wrong is
// found before any data is read, but for a NaN, which CheckNoNaN refuses.
absl::StatusOr<std::vector<Parameter>> ReadParameters(const v1::ModelConfig& config,
                                                      const ParameterRules& rules, InputFile& file);

// Leaves in `parameters`, which may hold others, those that MatchParameters finds, and points at
// their data. InvalidArgument as MatchParameters, and for two of one name.
absl::StatusOr<BoundParameters> BindParameters(const v1::ModelConfig& config,
                                               const ParameterRules& rules,
                                               std::vector<Parameter>& parameters);

}  // namespace normd

#endif  // NORMD_OPERATIONS_PARAMETERS_H_
