// One loaded model version: its config, its operation and its parameters.

#ifndef NORMD_SERVER_MODEL_MODEL_H_
#define NORMD_SERVER_MODEL_MODEL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/shape.h"
#include "kernels/types.h"
#include "normd/v1/model_config.pb.h"
#include "operations/operation.h"
#include "operations/parameter.h"
#include "server/metrics/metrics.h"

namespace normd {

// A backend's state for a model beyond its host parameters, such as device copies.
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
// request finishes with the state with which it began.
class Model {
 public:
  // Checks the config and the parameters against each other, as BindParameters
  // (operations/parameters.h) does: `parameters` may hold others.
  static absl::StatusOr<std::shared_ptr<Model>> Create(std::string name, std::int64_t version,
                                                       v1::ModelConfig config,
                                                       std::vector<Parameter> parameters,
                                                       std::shared_ptr<ModelMetrics> metrics);
  // The same for a given operation, which the config need not name; the rest of the config has been
  // checked.
  static absl::StatusOr<std::shared_ptr<Model>> Create(std::string name, std::int64_t version,
                                                       v1::ModelConfig config,
                                                       std::unique_ptr<const Operation> operation,
                                                       std::vector<Parameter> parameters,
                                                       std::shared_ptr<ModelMetrics> metrics);

  // `model` under a config that differs from its own only in version_policy, canary and
  // version_alias. Both share one operation, one set of parameters and one backend state.
  static std::shared_ptr<const Model> WithConfig(const Model& model, v1::ModelConfig config);

  const std::string& name() const { return name_; }
  std::int64_t version() const { return version_; }
  const v1::ModelConfig& config() const { return config_; }
  const std::vector<Parameter>& parameters() const { return parameters_; }
  ModelMetrics& metrics() const { return *metrics_; }

  // The backends' computation.
  const KernelProgram& program() const { return *program_; }

  // As in Operation.
  absl::Span<const TensorSignature> inputs() const { return operation_->signature().inputs; }
  absl::Span<const TensorSignature> outputs() const { return operation_->signature().outputs; }
  CutRule cut() const { return operation_->cut(); }
  bool runs_inline() const { return operation_->runs_inline(); }
  absl::InlinedVector<TensorType, kInlinedOutputs> Outputs(
      absl::Span<const TensorType> inputs) const {
    return operation_->Outputs(inputs);
  }
  absl::StatusOr<RequestOptions> CheckOptions(const AskedOptions& asked) const {
    return operation_->CheckOptions(asked, name_);
  }

  // Whether the first input may have this type, by the config and the operation.
  bool TakesDType(norm::DType dtype) const;
  // Checks a request's tensors, one for each of inputs(), against the model: the types of its
  // config and its operation, then as Operation::Check.
  absl::StatusOr<Geometry> Check(absl::Span<const TensorType> inputs) const;
  // The same for a model with one input.
  absl::StatusOr<Geometry> Check(norm::DType dtype, const Shape& shape) const {
    const TensorType x{dtype, shape};
    return Check(absl::MakeConstSpan(&x, 1));
  }

  // Called once, by the loader, before the model is shared.
  void set_backend_state(std::unique_ptr<BackendState> state) { backend_state_ = std::move(state); }
  const BackendState* backend_state() const { return backend_state_.get(); }

 private:
  Model() = default;
  Model(const Model&) = default;

  std::string name_;
  std::int64_t version_ = 0;
  v1::ModelConfig config_;
  std::vector<Parameter> parameters_;
  // shared, like the parameters' data: with the models from WithConfig. The state may refer to the
  // program.
  std::shared_ptr<const Operation> operation_;
  std::shared_ptr<const KernelProgram> program_;
  std::shared_ptr<BackendState> backend_state_;
  std::shared_ptr<ModelMetrics> metrics_;  // shared: the series go with the last of the models.
};

}  // namespace normd

#endif  // NORMD_SERVER_MODEL_MODEL_H_
