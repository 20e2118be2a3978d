// What a model of a repository ought to answer, in float64: from its config.textproto, its
// params.safetensors and kernels/reference.h, with nothing of the server's between them. Of the
// clients' files this one alone knows which inputs and outputs an operation has.

#ifndef NORMD_CLIENT_VERIFY_REFERENCE_MODEL_H_
#define NORMD_CLIENT_VERIFY_REFERENCE_MODEL_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/tensor/tensor.h"
#include "kernels/linear_norm.h"
#include "kernels/norm.h"
#include "normd/v1/model_config.pb.h"

namespace normd::client {

// The names of the inputs that a model of this config takes, in its order.
std::vector<std::string> InputNames(const v1::ModelConfig& config);

// One output, unrounded. Its name is empty where the model has no other.
struct ReferenceOutput {
  TensorSpec spec;
  std::vector<double> elements;  // In the output's order.
};

// Immutable; thread-safe.
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

  // The outputs for these inputs, which are named as in a request, in the model's order.
  // InvalidArgument when they are not the model's inputs or the bytes do not fit the shapes. Cost:
  // one thread, about 10 ns an element; of a fused layer some nanoseconds for each of its
  // multiplications.
  absl::StatusOr<std::vector<ReferenceOutput>> Compute(absl::Span<const NamedTensor> inputs) const;
  // The outputs' names, types and shapes for inputs like these. Likewise.
  absl::StatusOr<std::vector<TensorSpec>> Outputs(absl::Span<const TensorSpec> inputs) const;

 private:
  ReferenceModel() = default;

  absl::Status TakeOperation(const v1::ModelConfig& config);
  absl::Status TakeLinear(const v1::ModelConfig& config);
  absl::StatusOr<norm::Segment> SegmentOf(const TensorView& x) const;
  absl::StatusOr<std::vector<double>> ComputeNorm(const TensorView& x) const;
  absl::StatusOr<std::vector<double>> ComputeLinear(const TensorView& x, const TensorView* y) const;
  // The shape of the output for such an x.
  Shape OutputShape(const Shape& x) const;

  std::vector<std::string> input_names_;
  norm::NormSpec spec_;                         // dtype is the request's.
  bool machine_epsilon_ = false;                // eps is the epsilon of the request's type.
  std::vector<std::int64_t> normalized_shape_;  // Of LayerNorm and RMSNorm.
  std::map<std::string, Tensor> parameters_;
  std::optional<norm::LinearNormSpec> linear_;  // Of a fused layer; its dtype is the request's.
  norm::LinearNormParams linear_params_;        // Borrows likewise.
  norm::NormParams params_;  // Borrows from parameters_, whose memory moves with it.
};

}  // namespace normd::client

#endif  // NORMD_CLIENT_VERIFY_REFERENCE_MODEL_H_
