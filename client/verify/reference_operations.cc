#include "client/verify/reference_operations.h"

#include <utility>

#include "client/verify/reference_linear_norm.h"
#include "client/verify/reference_norm.h"

namespace normd::client {
namespace {

// The type is the request's; any will do until then.
constexpr norm::DType kAny = norm::DType::kFloat32;

using Made = absl::StatusOr<std::unique_ptr<ReferenceOperation>>;

struct Entry {
  v1::ModelConfig::OperationCase operation;
  Made (*make)(const v1::ModelConfig& config);
};

template <typename Message>
bool IsAffine(const Message& message) {
  return !message.has_affine() || message.affine();
}

template <typename Message>
void SetEps(const Message& message, norm::NormSpec& spec) {
  if (message.has_eps()) spec.eps = message.eps();
}

Made MakeInstanceNorm(const v1::ModelConfig& config) {
  const v1::InstanceNorm& message = config.instance_norm();
  ReferenceNormCase norm;
  norm.spec = norm::InstanceNormSpec(message.channels(), kAny);
  SetEps(message, norm.spec);
  norm.has_weight = norm.has_bias = message.affine();
  if (message.use_running_stats()) norm.spec.statistics = norm::Statistics::kGiven;
  return MakeReferenceNorm(config, std::move(norm));
}

Made MakeGroupNorm(const v1::ModelConfig& config) {
  const v1::GroupNorm& message = config.group_norm();
  ReferenceNormCase norm;
  norm.spec = norm::GroupNormSpec(message.channels(), message.groups(), kAny);
  SetEps(message, norm.spec);
  norm.has_weight = norm.has_bias = IsAffine(message);
  return MakeReferenceNorm(config, std::move(norm));
}

Made MakeBatchNorm(const v1::ModelConfig& config) {
  const v1::BatchNorm& message = config.batch_norm();
  ReferenceNormCase norm;
  norm.spec = norm::BatchNormSpec(message.channels(), kAny);
  SetEps(message, norm.spec);
  norm.has_weight = norm.has_bias = IsAffine(message);
  return MakeReferenceNorm(config, std::move(norm));
}

// Over the trailing dimensions.
template <typename Message>
void SetNormalized(const Message& message, ReferenceNormCase& norm) {
  norm.normalized_shape = {message.normalized_shape().begin(), message.normalized_shape().end()};
}

// Over those that `axes` names, if it does.
template <typename Message>
void SetNormalizedAxes(const Message& message, ReferenceNormCase& norm) {
  SetNormalized(message, norm);
  norm.axes = {message.axes().begin(), message.axes().end()};
  const auto count = static_cast<int>(norm.axes.size());
  if (count > 0 && norm.axes.front() == -count && norm.axes.back() == -1) norm.axes.clear();
}

template <typename Message>
ReferenceNormCase LayerNormCase(const Message& message) {
  ReferenceNormCase norm;
  norm.spec = norm::LayerNormSpec(1, kAny);
  SetEps(message, norm.spec);
  norm.has_weight = norm.has_bias = IsAffine(message);
  SetNormalized(message, norm);
  return norm;
}

Made MakeLayerNorm(const v1::ModelConfig& config) {
  ReferenceNormCase norm = LayerNormCase(config.layer_norm());
  SetNormalizedAxes(config.layer_norm(), norm);
  return MakeReferenceNorm(config, std::move(norm));
}

// For every message with the fields of RmsNorm.
template <typename Message>
ReferenceNormCase RmsNormCase(const Message& message) {
  ReferenceNormCase norm;
  norm.spec = norm::RmsNormSpec(1, kAny);
  SetEps(message, norm.spec);
  norm.spec.weight_offset = message.weight_offset();
  norm.takes_machine_epsilon = !message.has_eps();
  norm.has_weight = IsAffine(message);
  SetNormalized(message, norm);
  return norm;
}

Made MakeRmsNorm(const v1::ModelConfig& config) {
  ReferenceNormCase norm = RmsNormCase(config.rms_norm());
  SetNormalizedAxes(config.rms_norm(), norm);
  return MakeReferenceNorm(config, std::move(norm));
}

Made MakeAddNorm(const v1::ModelConfig& config, ReferenceNormCase norm) {
  norm.spec.residual = norm.spec.residual_out = true;
  return MakeReferenceNorm(config, std::move(norm));
}

Made MakeAddRmsNorm(const v1::ModelConfig& config) {
  return MakeAddNorm(config, RmsNormCase(config.add_rms_norm()));
}

Made MakeAddLayerNorm(const v1::ModelConfig& config) {
  return MakeAddNorm(config, LayerNormCase(config.add_layer_norm()));
}

Made MakeGatedRmsNorm(const v1::ModelConfig& config) {
  const v1::GatedRmsNorm& message = config.gated_rms_norm();
  ReferenceNormCase norm = RmsNormCase(message);
  norm.other_name = "gate";
  (message.norm_before_gate() ? norm.spec.combine_output : norm.spec.combine_input) =
      norm::Combine::kMultiplySilu;
  if (message.group_size() > 0) {
    std::int64_t elements = 1;
    for (const std::int64_t dim : norm.normalized_shape) elements *= dim;
    norm.spec.groups = elements / message.group_size();
  }
  return MakeReferenceNorm(config, std::move(norm));
}

Made MakeLpNormalize(const v1::ModelConfig& config) {
  const v1::LpNormalize& message = config.lp_normalize();
  ReferenceNormCase norm;
  norm.spec = norm::RmsNormSpec(1, kAny);
  const double p = message.has_p() ? message.p() : 2;
  norm.spec.statistics = p == 1   ? norm::Statistics::kSumOfAbsolutes
                         : p == 2 ? norm::Statistics::kRootOfSquares
                                  : norm::Statistics::kLargestAbsolute;
  norm.spec.eps = message.has_eps() ? message.eps() : 1e-12;
  SetNormalizedAxes(message, norm);
  return MakeReferenceNorm(config, std::move(norm));
}

template <typename Message>
void SetModulation(const Message& message, ReferenceNormCase& norm) {
  SetEps(message, norm.spec);
  norm.spec.scale = norm.spec.shift = true;
  if (message.has_scale_offset()) norm.spec.scale_offset = message.scale_offset();
  norm.has_weight = norm.has_bias = message.affine();
}

Made MakeAdaptiveLayerNorm(const v1::ModelConfig& config) {
  const v1::AdaptiveLayerNorm& message = config.adaptive_layer_norm();
  ReferenceNormCase norm;
  norm.spec = norm::LayerNormSpec(message.features(), kAny);
  norm.spec.layout = norm::Layout::kChannelsLast;
  norm.spec.rows = norm::Rows::kPosition;
  SetModulation(message, norm);
  norm.spec.residual = norm.spec.residual_out = norm.spec.gate = message.gated_residual();
  return MakeReferenceNorm(config, std::move(norm));
}

Made MakeAdaptiveGroupNorm(const v1::ModelConfig& config) {
  const v1::AdaptiveGroupNorm& message = config.adaptive_group_norm();
  ReferenceNormCase norm;
  norm.spec = norm::GroupNormSpec(message.channels(), message.groups(), kAny);
  SetModulation(message, norm);
  return MakeReferenceNorm(config, std::move(norm));
}

Made MakeAdaptiveInstanceNorm(const v1::ModelConfig& config) {
  const v1::AdaptiveInstanceNorm& message = config.adaptive_instance_norm();
  ReferenceNormCase norm;
  norm.spec = norm::InstanceNormSpec(message.channels(), kAny);
  SetEps(message, norm.spec);
  norm.spec.style = norm::Style::kTensor;
  return MakeReferenceNorm(config, std::move(norm));
}

Made MakeConditionalInstanceNorm(const v1::ModelConfig& config) {
  const v1::ConditionalInstanceNorm& message = config.conditional_instance_norm();
  ReferenceNormCase norm;
  norm.spec = norm::InstanceNormSpec(message.channels(), kAny);
  SetEps(message, norm.spec);
  norm.spec.style = message.by_index() ? norm::Style::kIndex : norm::Style::kMix;
  norm.spec.styles = message.styles();
  norm.has_weight = norm.has_bias = true;
  return MakeReferenceNorm(config, std::move(norm));
}

constexpr Entry kOperations[] = {
    {v1::ModelConfig::kInstanceNorm, MakeInstanceNorm},
    {v1::ModelConfig::kGroupNorm, MakeGroupNorm},
    {v1::ModelConfig::kLayerNorm, MakeLayerNorm},
    {v1::ModelConfig::kRmsNorm, MakeRmsNorm},
    {v1::ModelConfig::kBatchNorm, MakeBatchNorm},
    {v1::ModelConfig::kLinearNorm, MakeReferenceLinearNorm},
    {v1::ModelConfig::kAddRmsNorm, MakeAddRmsNorm},
    {v1::ModelConfig::kAddLayerNorm, MakeAddLayerNorm},
    {v1::ModelConfig::kGatedRmsNorm, MakeGatedRmsNorm},
    {v1::ModelConfig::kLpNormalize, MakeLpNormalize},
    {v1::ModelConfig::kAdaptiveLayerNorm, MakeAdaptiveLayerNorm},
    {v1::ModelConfig::kAdaptiveGroupNorm, MakeAdaptiveGroupNorm},
    {v1::ModelConfig::kAdaptiveInstanceNorm, MakeAdaptiveInstanceNorm},
    {v1::ModelConfig::kConditionalInstanceNorm, MakeConditionalInstanceNorm},
};

}  // namespace

absl::StatusOr<std::unique_ptr<ReferenceOperation>> MakeReferenceOperation(
    const v1::ModelConfig& config) {
  for (const Entry& entry : kOperations) {
    if (entry.operation == config.operation_case()) return entry.make(config);
  }
  return absl::InvalidArgumentError("config: names no operation that can be verified");
}

}  // namespace normd::client
