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

Made MakeLayerNorm(const v1::ModelConfig& config) {
  const v1::LayerNorm& message = config.layer_norm();
  ReferenceNormCase norm;
  norm.spec = norm::LayerNormSpec(1, kAny);
  SetEps(message, norm.spec);
  norm.has_weight = norm.has_bias = IsAffine(message);
  norm.normalized_shape = {message.normalized_shape().begin(), message.normalized_shape().end()};
  return MakeReferenceNorm(config, std::move(norm));
}

// For every message with the fields of RmsNorm.
template <typename Message>
ReferenceNormCase RmsNormCase(const Message& message) {
  ReferenceNormCase norm;
  norm.spec = norm::RmsNormSpec(1, kAny);
  SetEps(message, norm.spec);
  norm.takes_machine_epsilon = !message.has_eps();
  norm.has_weight = IsAffine(message);
  norm.normalized_shape = {message.normalized_shape().begin(), message.normalized_shape().end()};
  return norm;
}

Made MakeRmsNorm(const v1::ModelConfig& config) {
  return MakeReferenceNorm(config, RmsNormCase(config.rms_norm()));
}

Made MakeAddRmsNorm(const v1::ModelConfig& config) {
  ReferenceNormCase norm = RmsNormCase(config.add_rms_norm());
  norm.spec.residual = norm.spec.residual_out = true;
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
