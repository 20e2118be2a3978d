// The correct results of a repository's model, in float64: from its config.textproto, its
// params.safetensors and kernels/reference.h, without any of the server's code. In the clients,
// only verification knows operations; reference_operations.cc has the table.

#ifndef NORMD_CLIENT_VERIFY_REFERENCE_MODEL_H_
#define NORMD_CLIENT_VERIFY_REFERENCE_MODEL_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/tensor/tensor.h"
#include "client/verify/reference_operation.h"
#include "normd/v1/model_config.pb.h"

namespace normd::client {

// Immutable; thread-safe. Move-only.
class ReferenceModel {
 public:
  // Reads <repository>/<name>/config.textproto and
  // <repository>/<name>/<version>/params.safetensors, which a model without parameters need not
  // have. NotFound or InvalidArgument, with the path or the parameter.
  static absl::StatusOr<ReferenceModel> Load(const std::string& repository, const std::string& name,
                                             std::int64_t version);
  // From memory. `parameters` as in the file.
  static absl::StatusOr<ReferenceModel> Create(const v1::ModelConfig& config,
                                               std::map<std::string, Tensor> parameters);

  // The outputs of a response to these inputs, which are named as in a request. They are in the
  // model's order: the outputs wanted by name or, if there are none, the default ones. An only
  // output that is not wanted by name has no name. InvalidArgument unless these are the model's
  // inputs and outputs and the bytes fit the shapes. Cost: one thread, about 10 ns an element; for
  // a fused layer some nanoseconds per multiplication.
  absl::StatusOr<std::vector<ReferenceOutput>> Compute(
      absl::Span<const NamedTensor> inputs, absl::Span<const std::string> wanted = {}) const;
  // Their names, types and shapes for inputs like these. Likewise.
  absl::StatusOr<std::vector<TensorSpec>> Outputs(absl::Span<const TensorSpec> inputs,
                                                  absl::Span<const std::string> wanted = {}) const;

 private:
  ReferenceModel(std::unique_ptr<ReferenceOperation> operation,
                 std::unique_ptr<const ReferenceParameters> parameters);

  std::vector<std::string> input_names_;
  std::unique_ptr<const ReferenceParameters> parameters_;  // The operation reads their memory.
  std::unique_ptr<const ReferenceOperation> operation_;
};

}  // namespace normd::client

#endif  // NORMD_CLIENT_VERIFY_REFERENCE_MODEL_H_
