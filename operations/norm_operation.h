// The common part of the operations that are cases of the kernels' norm (kernels/norm.h).
// kernels/segment_tensors.h gives their tensors for a spec.

#ifndef NORMD_OPERATIONS_NORM_OPERATION_H_
#define NORMD_OPERATIONS_NORM_OPERATION_H_

#include <string>
#include <vector>

#include "kernels/segment_tensors.h"
#include "operations/operation.h"

namespace normd {

inline constexpr double kDefaultEps = 1e-5;

// The names of the parameters of PyTorch's norms.
absl::Span<const absl::string_view> TorchNormNames();

// `eps` of an operation's message, or `absent` if it is not set.
template <typename Message>
double EpsOf(const Message& message, double absent = kDefaultEps) {
  return message.has_eps() ? message.eps() : absent;
}
// `affine` for operations where it is true when absent.
template <typename Message>
bool IsAffine(const Message& message) {
  return !message.has_affine() || message.affine();
}

// The PyTorch parameters of a norm. Of weight and bias, one suffices.
struct NormParameters {
  bool weight = false;
  bool bias = false;
  bool running = false;
};

// The contents of an operation's own message, for any type of tensors.
struct NormCase {
  norm::NormSpec spec;
  NormParameters parameters;
  // Replaces spec.eps by the machine epsilon of the type in which PyTorch computes the statistics.
  bool takes_machine_epsilon = false;
  // The name of the second tensor of x's shape, if the spec takes one. Static storage.
  absl::string_view other_name = "other";
};

// Sets the fields that every operation takes from the config beside its own message: layout and
// activation.
void SetCommon(const v1::ModelConfig& config, norm::NormSpec& spec);

// The places where tensors of such a norm may be cut.
CutRule CutRuleOf(const norm::NormSpec& spec);

// Thread-safe, as it is immutable.
class NormOperation : public Operation {
 public:
  const Signature& signature() const final { return signature_; }
  const ParameterRules& parameters() const override { return parameters_; }
  bool TakesDType(norm::DType dtype) const final { return norm::IsNormalized(dtype); }
  std::string DTypesText() const final;
  absl::StatusOr<Geometry> Check(absl::Span<const TensorType> inputs) const final;
  absl::InlinedVector<TensorType, kInlinedOutputs> Outputs(
      absl::Span<const TensorType> inputs) const final;
  bool Quantizes(v1::QuantizationScales scales) const final;
  CutRule cut() const final { return CutRuleOf(spec_); }
  // A mixture of styles reads its whole table for each sample, however small the sample is.
  bool runs_inline() const final { return spec_.style != norm::Style::kMix; }
  KernelProgram MakeProgram(const BoundParameters& parameters) const override;

 protected:
  // The shapes that tensors may have.
  struct Patterns {
    ShapePattern x;  // What Divide accepts.
    // The shape with one element per row, which RowDims gives for x.
    ShapePattern rows;
  };
  using Dims = absl::InlinedVector<std::int64_t, 6>;

  // `parameter_shape` is that of each parameter, or of a table's rows if there are styles. An
  // operation that forces a layout sets it in its spec and passes a config without one.
  NormOperation(const v1::ModelConfig& config, const NormCase& norm, const Shape& parameter_shape,
                const Patterns& patterns);

  const norm::NormSpec& spec() const { return spec_; }

 private:
  // Sets the samples and the spatial elements of x; the error says why they do not fit.
  virtual absl::Status Divide(const Shape& x, Geometry& geometry) const = 0;
  // The shape of one element for each row of an x that Divide accepts.
  virtual Dims RowDims(const Shape& x) const = 0;
  // The last dimension of RowDims is multiplied by this if a row has several scales.
  std::int64_t ScalesOfRow() const;
  std::int64_t WorkspaceBytes(const Geometry& geometry, norm::DType dtype) const;
  Shape ShapeOf(norm::SegmentOutput output, const Shape& x) const;

  void SetInputs(const ShapePattern& shape, absl::string_view other_name);
  void SetOutputs(const Patterns& patterns);
  void SetParameters(const NormParameters& parameters, const Shape& shape);
  absl::Status CheckFurther(std::size_t index, const TensorType& input, const TensorType& x) const;
  absl::Status CheckStyle(const TensorType& style, const TensorType& x) const;

  norm::NormSpec spec_;
  bool takes_machine_epsilon_;
  std::vector<norm::SegmentInput> inputs_;
  std::vector<norm::SegmentOutput> outputs_;
  ParameterRules parameters_;
  Signature signature_;
};

}  // namespace normd

#endif  // NORMD_OPERATIONS_NORM_OPERATION_H_
