#include "server/model/operations/group_norm.h"

#include "server/model/field_checks.h"
#include "server/model/operations/channel_norm.h"

namespace normd {
namespace {

absl::Status CheckGroups(const v1::GroupNorm& message) {
  if (message.groups() >= 1 && message.channels() % message.groups() == 0) return absl::OkStatus();
  return InvalidField("group_norm.groups", absl::StrCat(message.groups()),
                      absl::StrCat("a divisor of ", message.channels(), " channels"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Operation>> MakeGroupNorm(const v1::ModelConfig& config) {
  const v1::GroupNorm& message = config.group_norm();
  absl::Status status = CheckChannels("group_norm", message.channels());
  if (status.ok()) status = CheckGroups(message);
  if (status.ok()) status = CheckEps("group_norm", message);
  if (!status.ok()) return status;
  norm::NormSpec spec =
      norm::GroupNormSpec(message.channels(), message.groups(), norm::DType::kFloat32);
  spec.eps = EpsOf(message);
  const NormParameters parameters = {IsAffine(message), IsAffine(message), false};
  return std::make_unique<ChannelNorm>(config, spec, parameters);
}

}  // namespace normd
