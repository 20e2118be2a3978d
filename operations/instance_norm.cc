#include "operations/makers.h"

#include "operations/channel_norm.h"
#include "operations/field_checks.h"

namespace normd {

absl::StatusOr<std::unique_ptr<Operation>> MakeInstanceNorm(const v1::ModelConfig& config) {
  const v1::InstanceNorm& message = config.instance_norm();
  absl::Status status = CheckChannels("instance_norm", message.channels());
  if (status.ok()) status = CheckEps("instance_norm", message);
  if (!status.ok()) return status;
  NormCase norm;
  norm.spec = norm::InstanceNormSpec(message.channels(), norm::DType::kFloat32);
  if (message.use_running_stats()) norm.spec.statistics = norm::Statistics::kGiven;
  norm.spec.eps = EpsOf(message);
  norm.parameters = {message.affine(), message.affine(), message.use_running_stats()};
  return std::make_unique<ChannelNorm>(config, norm);
}

}  // namespace normd
