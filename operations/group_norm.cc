#include "operations/makers.h"

#include "operations/channel_norm.h"
#include "operations/field_checks.h"

namespace normd {
absl::StatusOr<std::unique_ptr<Operation>> MakeGroupNorm(const v1::ModelConfig& config) {
  const v1::GroupNorm& message = config.group_norm();
  absl::Status status = CheckChannels("group_norm", message.channels());
  if (status.ok()) status = CheckGroups("group_norm", message);
  if (status.ok()) status = CheckEps("group_norm", message);
  if (!status.ok()) return status;
  NormCase norm;
  norm.spec = norm::GroupNormSpec(message.channels(), message.groups(), norm::DType::kFloat32);
  norm.spec.eps = EpsOf(message);
  norm.parameters = {IsAffine(message), IsAffine(message), false};
  return std::make_unique<ChannelNorm>(config, norm);
}

}  // namespace normd
