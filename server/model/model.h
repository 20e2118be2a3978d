// One loaded model version: its config, its parameters, and how a request's tensor maps to rows.

#ifndef NORMD_SERVER_MODEL_MODEL_H_
#define NORMD_SERVER_MODEL_MODEL_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/shape.h"
#include "kernels/linear_norm.h"
#include "kernels/norm.h"
#include "normd/v1/model_config.pb.h"
#include "server/metrics/metrics.h"
#include "server/model/channel_range.h"

namespace normd {

struct Parameter {
  std::string name;  // As in the file: "weight", or "encoder.norm1.weight".
  norm::DType dtype = norm::DType::kFloat32;
  Shape shape;
  // Row-major, aligned to 64 bytes. shared: versions that reload an unchanged file and device
  // uploads in flight may hold it while the model goes.
  std::shared_ptr<const std::byte[]> data;
};

// What a request says of one input tensor.
struct TensorType {
  norm::DType dtype = norm::DType::kFloat32;
  Shape shape;
};

// How a request's tensors divide into segments of the kernels' contract. All its tensors have as
// many samples.
struct Geometry {
  std::int64_t samples = 0;
  std::int64_t spatial = 1;
  std::int64_t rows = 0;   // samples * groups; what batch limits count
  std::int64_t bytes = 0;  // of the output; a norm's input has as many
  // Of a part of one sample (samples is 1): the channels that the tensor covers. Check gives all.
  ChannelRange channels{};
  std::array<std::int64_t, kMaxInputs> input_bytes{};  // in the order of Model::input_names

  std::int64_t InputBytes() const {
    std::int64_t sum = 0;
    for (const std::int64_t input : input_bytes) sum += input;
    return sum;
  }
  // Of all inputs or of the output, whichever is more: what limits of bytes count.
  std::int64_t LargerBytes() const { return std::max(InputBytes(), bytes); }
};

// What a backend keeps for a model beyond its host parameters, such as device copies.
class BackendState {
 public:
  virtual ~BackendState() = default;
};

class Model;

// Makes a model ready to compute. Implemented by server/exec; called at load, on the loader's
// thread.
class ModelBackend {
 public:
  virtual ~ModelBackend() = default;
  // ResourceExhausted, with the numbers, when the state does not fit. May return null.
  virtual absl::StatusOr<std::unique_ptr<BackendState>> Prepare(const Model& model) = 0;
};

// Immutable after Create and Prepare; shared by the registry and the requests in flight, so that a
// request finishes on the state it began with.
class Model {
 public:
  // Checks the config and the parameters against each other, as MatchParameters (parameters.h)
  // does. `parameters` may hold others beside those that the config asks for.
  static absl::StatusOr<std::shared_ptr<Model>> Create(std::string name, std::int64_t version,
                                                       v1::ModelConfig config,
                                                       std::vector<Parameter> parameters,
                                                       std::shared_ptr<ModelMetrics> metrics);

  const std::string& name() const { return name_; }
  std::int64_t version() const { return version_; }
  const v1::ModelConfig& config() const { return config_; }
  const std::vector<Parameter>& parameters() const { return parameters_; }
  ModelMetrics& metrics() const { return *metrics_; }

  // The fused layer that the model computes, whose dtype is not meant; null for the norms.
  const norm::LinearNormSpec* linear() const { return linear_ ? &*linear_ : nullptr; }

  // Of a norm: the spec for inputs of `dtype`.
  const norm::NormSpec& Spec(norm::DType dtype) const {
    return specs_[static_cast<std::size_t>(dtype) - 1];
  }
  // Host memory, alive as long as the model. The first of a norm, the second of a fused layer.
  const norm::NormParams& host_params() const { return host_params_; }
  const norm::LinearNormParams& host_linear_params() const { return host_linear_params_; }

  // The inputs that every request has, in the order of Request::inputs: "x", and "y" where a fused
  // layer's epilogue uses it.
  absl::Span<const absl::string_view> input_names() const;

  // Checks a request's tensors, one for each of input_names(), against the model: type, rank,
  // channels, normalized shape. InvalidArgument names the field, what came and what was wanted.
  // Zero samples are allowed; any other dimension must be at least 1. The sum of the bytes fits 63
  // bits.
  absl::StatusOr<Geometry> Check(absl::Span<const TensorType> inputs) const;
  // The same of a model with one input.
  absl::StatusOr<Geometry> Check(norm::DType dtype, const Shape& shape) const {
    const TensorType x{dtype, shape};
    return Check(absl::MakeConstSpan(&x, 1));
  }

  // Of the answer to an "x" that Check has accepted.
  Shape OutputShape(Shape x) const;

  // Called once, by the loader, before the model is shared.
  void set_backend_state(std::unique_ptr<BackendState> state) { backend_state_ = std::move(state); }
  const BackendState* backend_state() const { return backend_state_.get(); }

 private:
  Model() = default;

  norm::NormSpec& SpecFor(norm::DType dtype) { return specs_[static_cast<std::size_t>(dtype) - 1]; }

  std::string name_;
  std::int64_t version_ = 0;
  v1::ModelConfig config_;
  std::vector<Parameter> parameters_;
  std::array<norm::NormSpec, 4> specs_;  // One for each type, in the order of its values from 1.
  std::vector<std::int64_t> normalized_shape_;
  std::optional<norm::LinearNormSpec> linear_;
  norm::NormParams host_params_;
  norm::LinearNormParams host_linear_params_;
  std::unique_ptr<BackendState> backend_state_;
  std::shared_ptr<ModelMetrics> metrics_;  // shared: the series go with the last of the models.
};

// Between the kernels' types and the protocol's.
absl::StatusOr<norm::DType> FromProto(v1::DataType dtype);  // InvalidArgument: "dtype: ..."
v1::DataType ToProto(norm::DType dtype);

}  // namespace normd

#endif  // NORMD_SERVER_MODEL_MODEL_H_
