// What the operations have in common that are cases of the kernels' norm (kernels/norm.h). Its
// tensors have the contract's names, and all of a request have one type and shape.

#ifndef NORMD_SERVER_MODEL_OPERATIONS_NORM_OPERATION_H_
#define NORMD_SERVER_MODEL_OPERATIONS_NORM_OPERATION_H_

#include <string>

#include "server/model/operation.h"

namespace normd {

inline constexpr double kDefaultEps = 1e-5;

// The names of the parameters of PyTorch's norms.
absl::Span<const absl::string_view> TorchNormNames();

// `eps` of an operation's message, or `absent` when it says nothing.
template <typename Message>
double EpsOf(const Message& message, double absent = kDefaultEps) {
  return message.has_eps() ? message.eps() : absent;
}
// `affine` of the operations where it is true when absent.
template <typename Message>
bool IsAffine(const Message& message) {
  return !message.has_affine() || message.affine();
}

// Which of PyTorch's parameters a norm has. Of weight and bias, one suffices.
struct NormParameters {
  bool weight = false;
  bool bias = false;
  bool running = false;
};

// Sets what every operation takes from the config beside its own message: layout and activation.
void SetCommon(const v1::ModelConfig& config, norm::NormSpec& spec);

// Where tensors of such a norm may be cut.
CutRule CutRuleOf(const norm::NormSpec& spec);

// Thread-safe, as it is immutable.
class NormOperation : public Operation {
 public:
  const Signature& signature() const final { return signature_; }
  const ParameterRules& parameters() const final { return parameters_; }
  bool TakesDType(norm::DType) const final { return true; }
  std::string DTypesText() const final;
  absl::StatusOr<Geometry> Check(absl::Span<const TensorType> inputs) const final;
  absl::InlinedVector<TensorType, kInlinedOutputs> Outputs(
      absl::Span<const TensorType> inputs) const final;
  CutRule cut() const final { return CutRuleOf(spec_); }
  bool runs_inline() const final { return true; }
  KernelProgram MakeProgram(const BoundParameters& parameters) const final;

 protected:
  // `spec` is the operation's own part, whatever its dtype; `parameter_shape` is that of each
  // parameter, and `shape` are those that tensors may have: what Divide accepts.
  NormOperation(const v1::ModelConfig& config, const norm::NormSpec& spec,
                const NormParameters& parameters, Shape parameter_shape, const ShapePattern& shape);

  const norm::NormSpec& spec() const { return spec_; }

 private:
  // Sets the samples and the spatial elements of x, or says why they do not fit.
  virtual absl::Status Divide(const Shape& x, Geometry& geometry) const = 0;
  // The eps for tensors of `dtype`.
  virtual double EpsFor(norm::DType) const { return spec_.eps; }

  absl::Status CheckFurther(const TensorType& x, absl::Span<const TensorType> inputs) const;

  norm::NormSpec spec_;
  ParameterRules parameters_;
  Signature signature_;
};

}  // namespace normd

#endif  // NORMD_SERVER_MODEL_OPERATIONS_NORM_OPERATION_H_
