// What a model of a repository ought to answer, in float64: from its config.textproto, its
// params.safetensors and kernels/reference.h, with nothing of the server's between them. Of all
// that the clients do, verifying alone knows operations; reference_operations.cc has the table.

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
  // Reads <repository>/<name>/config.textproto and <repository>/<name>/<version>/params.safetensors
  // (which a model without parameters need not have). NotFound or InvalidArgument, with the path or
  // the parameter.
  static absl::StatusOr<ReferenceModel> Load(const std::string& repository, const std::string& name,
                                             std::int64_t version);
  // From memory. `parameters` as in the file.
  static absl::StatusOr<ReferenceModel> Create(const v1::ModelConfig& config,
                                               std::map<std::string, Tensor> parameters);

  // The outputs of a response to these inputs, which are named as in a request, in the model's
  // order: those that are wanted by name, or, where none is, those that come unasked. An only one
  // that is not wanted by name has none. InvalidArgument when they are not the model's inputs or
  // outputs, or the bytes do not fit the shapes. Cost: one thread, about 10 ns an element; of a
  // fused layer some nanoseconds for each of its multiplications.
  absl::StatusOr<std::vector<ReferenceOutput>> Compute(
      absl::Span<const NamedTensor> inputs, absl::Span<const std::string> wanted = {}) const;
  // Their names, types and shapes for inputs like these. Likewise.
  absl::StatusOr<std::vector<TensorSpec>> Outputs(absl::Span<const TensorSpec> inputs,
                                                  absl::Span<const std::string> wanted = {}) const;

 private:
  ReferenceModel(std::unique_ptr<ReferenceOperation> operation,
                 std::unique_ptr<const ReferenceParameters> parameters);

  std::vector<std::string> input_names_;
  std::unique_ptr<const ReferenceParameters> parameters_;  // Whose memory the operation reads.
  std::unique_ptr<const ReferenceOperation> operation_;
};

}  // namespace normd::client

#endif  // NORMD_CLIENT_VERIFY_REFERENCE_MODEL_H_
