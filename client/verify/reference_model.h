// What a model of a repository ought to answer, in float64: from its config.textproto, its
// params.safetensors and kernels/reference.h, with nothing of the server's between them.

#ifndef NORMD_CLIENT_VERIFY_REFERENCE_MODEL_H_
#define NORMD_CLIENT_VERIFY_REFERENCE_MODEL_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/tensor/tensor.h"
#include "kernels/norm.h"
#include "normd/v1/model_config.pb.h"

namespace normd::client {

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

  // One double an element, unrounded, in the order of x. InvalidArgument when x is no input of the
  // model or its bytes do not fit its shape. Cost: one thread, about 10 ns an element.
  absl::StatusOr<std::vector<double>> Compute(const TensorView& x) const;

 private:
  ReferenceModel() = default;

  absl::Status TakeOperation(const v1::ModelConfig& config);
  absl::StatusOr<norm::Segment> SegmentOf(const TensorView& x) const;

  norm::NormSpec spec_;                         // dtype is the request's.
  std::vector<std::int64_t> normalized_shape_;  // Of LayerNorm and RMSNorm.
  std::map<std::string, Tensor> parameters_;
  norm::NormParams params_;  // Borrows from parameters_, whose memory moves with it.
};

}  // namespace normd::client

#endif  // NORMD_CLIENT_VERIFY_REFERENCE_MODEL_H_
