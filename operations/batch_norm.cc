#include "operations/makers.h"

#include "operations/channel_norm.h"
#include "operations/field_checks.h"

namespace normd {

absl::StatusOr<std::unique_ptr<Operation>> MakeBatchNorm(const v1::ModelConfig& config) {
  const v1::BatchNorm& message = config.batch_norm();
  absl::Status status = CheckChannels("batch_norm", message.channels());
  if (status.ok()) status = CheckEps("batch_norm", message);
  if (!status.ok()) return status;
  NormCase norm;
  norm.spec = norm::BatchNormSpec(message.channels(), norm::DType::kFloat32);
  norm.spec.eps = EpsOf(message);
  norm.parameters = {IsAffine(message), IsAffine(message), true};
  return std::make_unique<ChannelNorm>(config, norm);
}

}  // namespace normd
