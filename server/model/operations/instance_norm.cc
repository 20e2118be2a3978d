#include "server/model/operations/instance_norm.h"

#include "server/model/field_checks.h"
#include "server/model/operations/channel_norm.h"

namespace normd {

absl::StatusOr<std::unique_ptr<Operation>> MakeInstanceNorm(const v1::ModelConfig& config) {
  const v1::InstanceNorm& message = config.instance_norm();
  absl::Status status = CheckChannels("instance_norm", message.channels());
  if (status.ok()) status = CheckEps("instance_norm", message);
  if (!status.ok()) return status;
  norm::NormSpec spec = norm::InstanceNormSpec(message.channels(), norm::DType::kFloat32);
  if (message.use_running_stats()) spec.statistics = norm::Statistics::kGiven;
  spec.eps = EpsOf(message);
  const NormParameters parameters = {message.affine(), message.affine(),
                                     message.use_running_stats()};
  return std::make_unique<ChannelNorm>(config, spec, parameters);
}

}  // namespace normd
