#include "operations/makers.h"

#include "operations/normalized_shape_norm.h"

namespace normd {
namespace {

absl::Status CheckGroupSize(const v1::GatedRmsNorm& message) {
  const std::int64_t elements = ElementsOf(message.normalized_shape());
  if (!message.has_group_size() ||
      (message.group_size() >= 1 && elements % message.group_size() == 0)) {
    return absl::OkStatus();
  }
  return InvalidField("gated_rms_norm.group_size", absl::StrCat(message.group_size()),
                      absl::StrCat("a divisor of ", elements, " elements"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Operation>> MakeGatedRmsNorm(const v1::ModelConfig& config) {
  const v1::GatedRmsNorm& message = config.gated_rms_norm();
  absl::Status status = CheckRmsNorm("gated_rms_norm", message);
  if (status.ok()) status = CheckGroupSize(message);
  if (!status.ok()) return status;
  NormCase norm = RmsNormCaseOf(message);
  norm.other_name = "gate";
  norm::Combine& combine =
      message.norm_before_gate() ? norm.spec.combine_output : norm.spec.combine_input;
  combine = norm::Combine::kMultiplySilu;
  if (message.has_group_size()) norm.spec.groups = norm.spec.channels / message.group_size();
  return std::make_unique<NormalizedShapeNorm>(config, norm, message.normalized_shape());
}

}  // namespace normd
