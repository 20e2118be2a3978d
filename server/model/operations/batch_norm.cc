#include "server/model/operations/batch_norm.h"

#include "server/model/field_checks.h"
#include "server/model/operations/channel_norm.h"

namespace normd {

absl::StatusOr<std::unique_ptr<Operation>> MakeBatchNorm(const v1::ModelConfig& config) {
  const v1::BatchNorm& message = config.batch_norm();
  absl::Status status = CheckChannels("batch_norm", message.channels());
  if (status.ok()) status = CheckEps("batch_norm", message);
  if (!status.ok()) return status;
  norm::NormSpec spec = norm::BatchNormSpec(message.channels(), norm::DType::kFloat32);
  spec.eps = EpsOf(message);
  const NormParameters parameters = {IsAffine(message), IsAffine(message), true};
  return std::make_unique<ChannelNorm>(config, spec, parameters);
}

}  // namespace normd
