#include "client/verify/reference_linear_norm.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "client/verify/reference_norm.h"
#include "kernels/linear_norm.h"
#include "kernels/reference.h"

namespace normd::client {
namespace {

class ReferenceLinearNorm final : public ReferenceOperation {
 public:
  ReferenceLinearNorm(const norm::LinearNormSpec& spec, bool has_bias)
      : spec_(spec), has_bias_(has_bias) {}

  std::vector<std::string> input_names() const override {
    if (spec_.epilogue.needs_y()) return {"x", "y"};
    return {"x"};
  }
  bool needs_parameters() const override { return true; }
  absl::Status Take(const ReferenceParameters& parameters) override;
  std::vector<ReferenceSpec> Outputs(absl::Span<const TensorSpec* const> inputs) const override {
    return {{{"", inputs.front()->dtype, OutputShape(inputs.front()->shape)}, false}};
  }
  absl::StatusOr<std::vector<ReferenceOutput>> Compute(
      absl::Span<const NamedTensor* const> inputs) const override;

 private:
  // For such an x.
  Shape OutputShape(const Shape& x) const;

  const norm::LinearNormSpec spec_;  // dtype is the request's.
  const bool has_bias_;
  norm::LinearNormParams params_;
};

absl::Status ReferenceLinearNorm::Take(const ReferenceParameters& parameters) {
  const auto weight = parameters.Find("linear.weight", spec_.in_features * spec_.out_features);
  if (!weight.ok()) return weight.status();
  params_.weight = *weight;
  if (has_bias_) {
    const auto bias = parameters.Find("linear.bias", spec_.out_features);
    if (!bias.ok()) return bias.status();
    params_.bias = *bias;
  }
  return FromKernels(norm::ValidateLinearNorm(spec_, params_));
}

Shape ReferenceLinearNorm::OutputShape(const Shape& x) const {
  if (x.rank() == 0) return x;
  std::vector<std::int64_t> dims(x.dims().begin(), x.dims().end());
  dims.back() = spec_.out_features;
  return Shape::Create(dims).value_or(Shape());
}

absl::StatusOr<std::vector<ReferenceOutput>> ReferenceLinearNorm::Compute(
    absl::Span<const NamedTensor* const> inputs) const {
  const TensorView& x = inputs.front()->tensor;
  const TensorView* const y = inputs.size() > 1 ? &inputs[1]->tensor : nullptr;
  norm::LinearNormSpec spec = spec_;
  spec.dtype = x.dtype;
  const int rank = x.shape.rank();
  if (rank < 1 || x.shape.dim(rank - 1) != spec.in_features) {
    return absl::InvalidArgumentError(
        absl::StrCat("shape: ", x.shape.ToString(), ", wanted [*, ", spec.in_features, "]"));
  }
  const Shape shape = OutputShape(x.shape);
  if (y != nullptr && (y->dtype != x.dtype || !(y->shape == shape))) {
    return absl::InvalidArgumentError(absl::StrCat("y: ", norm::Name(y->dtype), " ",
                                                   y->shape.ToString(), ", wanted ",
                                                   norm::Name(x.dtype), " ", shape.ToString()));
  }
  norm::LinearNormSegment segment;
  segment.x = x.bytes.data();
  segment.y = y == nullptr ? nullptr : y->bytes.data();
  segment.samples = x.shape.Product(0, rank - 1);
  std::vector<double> out(static_cast<std::size_t>(shape.elements()));
  const norm::Status status = norm::LinearNormReference(spec, params_, segment, out.data());
  if (!status.ok()) return FromKernels(status);
  std::vector<ReferenceOutput> outputs;
  outputs.push_back({{"", x.dtype, shape}, std::move(out)});
  return outputs;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ReferenceOperation>> MakeReferenceLinearNorm(
    const v1::ModelConfig& config) {
  const v1::LinearNorm& message = config.linear_norm();
  norm::LinearNormSpec spec;
  spec.in_features = message.in_features();
  spec.out_features = message.out_features();
  if (message.has_eps()) spec.eps = message.eps();
  spec.epilogue.add = message.epilogue().add();
  spec.epilogue.multiply = message.epilogue().multiply();
  spec.epilogue.activation = ActivationOf(config.activation());
  spec.epilogue.leaky_slope = static_cast<float>(LeakySlopeOf(config));
  if (!CheckedMultiply(spec.in_features, spec.out_features)) {
    return absl::InvalidArgumentError("linear_norm: too many weights");
  }
  return std::make_unique<ReferenceLinearNorm>(spec, !message.has_bias() || message.bias());
}

}  // namespace normd::client
