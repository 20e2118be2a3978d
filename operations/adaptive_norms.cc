#include "operations/makers.h"

#include "operations/channel_norm.h"
#include "operations/field_checks.h"

namespace normd {
namespace {

// Larger tables are assumed to be errors.
constexpr std::int64_t kMaxStyles = std::int64_t{1} << 20;

// Scale and shift are inputs. Parameters come before them.
template <typename Message>
void SetModulation(const Message& message, NormCase& norm) {
  norm.spec.eps = EpsOf(message);
  norm.spec.scale = true;
  norm.spec.shift = true;
  if (message.has_scale_offset()) norm.spec.scale_offset = message.scale_offset();
  norm.parameters = {message.affine(), message.affine(), false};
}

template <typename Message>
absl::Status CheckModulation(absl::string_view operation, const Message& message) {
  absl::Status status = CheckEps(operation, message);
  if (!status.ok()) return status;
  return CheckFinite(absl::StrCat(operation, ".scale_offset"), message.scale_offset());
}

}  // namespace

absl::StatusOr<std::unique_ptr<Operation>> MakeAdaptiveLayerNorm(const v1::ModelConfig& config) {
  const v1::AdaptiveLayerNorm& message = config.adaptive_layer_norm();
  constexpr absl::string_view kName = "adaptive_layer_norm";
  absl::Status status = CheckCount(absl::StrCat(kName, ".features"), message.features());
  if (status.ok()) status = CheckModulation(kName, message);
  if (status.ok() && config.layout() != v1::CHANNELS_FIRST) {
    status = InvalidField("layout", v1::Layout_Name(config.layout()),
                          "none: adaptive_layer_norm has its features last");
  }
  if (!status.ok()) return status;
  NormCase norm;
  norm.spec = norm::LayerNormSpec(message.features(), norm::DType::kFloat32);
  norm.spec.layout = norm::Layout::kChannelsLast;
  norm.spec.rows = norm::Rows::kPosition;
  SetModulation(message, norm);
  if (message.gated_residual()) {
    norm.spec.residual = norm.spec.residual_out = norm.spec.gate = true;
  }
  return std::make_unique<ChannelNorm>(config, norm);
}

absl::StatusOr<std::unique_ptr<Operation>> MakeAdaptiveGroupNorm(const v1::ModelConfig& config) {
  const v1::AdaptiveGroupNorm& message = config.adaptive_group_norm();
  constexpr absl::string_view kName = "adaptive_group_norm";
  absl::Status status = CheckChannels(kName, message.channels());
  if (status.ok()) status = CheckGroups(kName, message);
  if (status.ok()) status = CheckModulation(kName, message);
  if (!status.ok()) return status;
  NormCase norm;
  norm.spec = norm::GroupNormSpec(message.channels(), message.groups(), norm::DType::kFloat32);
  SetModulation(message, norm);
  return std::make_unique<ChannelNorm>(config, norm);
}

absl::StatusOr<std::unique_ptr<Operation>> MakeAdaptiveInstanceNorm(const v1::ModelConfig& config) {
  const v1::AdaptiveInstanceNorm& message = config.adaptive_instance_norm();
  absl::Status status = CheckChannels("adaptive_instance_norm", message.channels());
  if (status.ok()) status = CheckEps("adaptive_instance_norm", message);
  if (!status.ok()) return status;
  NormCase norm;
  norm.spec = norm::InstanceNormSpec(message.channels(), norm::DType::kFloat32);
  norm.spec.eps = EpsOf(message);
  norm.spec.style = norm::Style::kTensor;
  return std::make_unique<ChannelNorm>(config, norm);
}

absl::StatusOr<std::unique_ptr<Operation>> MakeConditionalInstanceNorm(
    const v1::ModelConfig& config) {
  const v1::ConditionalInstanceNorm& message = config.conditional_instance_norm();
  absl::Status status = CheckChannels("conditional_instance_norm", message.channels());
  if (status.ok()) status = CheckEps("conditional_instance_norm", message);
  if (status.ok() && (message.styles() < 1 || message.styles() > kMaxStyles)) {
    status = InvalidField("conditional_instance_norm.styles", absl::StrCat(message.styles()),
                          absl::StrCat("1 to ", kMaxStyles));
  }
  if (!status.ok()) return status;
  NormCase norm;
  norm.spec = norm::InstanceNormSpec(message.channels(), norm::DType::kFloat32);
  norm.spec.eps = EpsOf(message);
  norm.spec.style = message.by_index() ? norm::Style::kIndex : norm::Style::kMix;
  norm.spec.styles = message.styles();
  norm.parameters = {true, true, false};
  return std::make_unique<ChannelNorm>(config, norm);
}

}  // namespace normd
