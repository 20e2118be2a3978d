#include "operations/channel_norm.h"

#include "absl/strings/str_cat.h"
#include "operations/field_checks.h"
#include "operations/makers.h"

namespace normd {
namespace {

ShapePattern PatternOf(const v1::ModelConfig& config, const norm::NormSpec& spec) {
  if (config.layout() == v1::CHANNELS_LAST || spec.layout == norm::Layout::kChannelsLast) {
    return {kAnySize, kAnyDimensions, spec.channels};
  }
  return {kAnySize, spec.channels, kAnyDimensions};
}

// As RowDims.
ShapePattern RowPatternOf(const norm::NormSpec& spec) {
  if (spec.rows == norm::Rows::kPosition) return {kAnySize, kAnyDimensions, 1};
  return {kAnySize, spec.groups};
}

// One element per channel; a table of them has a row for each style.
Shape ParameterShape(const norm::NormSpec& spec) {
  if (spec.styles == 0) return Shape::Create({spec.channels}).value_or(Shape());
  return Shape::Create({spec.styles, spec.channels}).value_or(Shape());
}

absl::Status CheckNotZero(const Shape& shape, int first, int last) {
  for (int i = first; i < last; ++i) {
    if (shape.dim(i) == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("shape[", i, "]: 0 in ", shape.ToString(), ", wanted at least 1"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

ChannelNorm::ChannelNorm(const v1::ModelConfig& config, const NormCase& norm)
    : NormOperation(config, norm, ParameterShape(norm.spec),
                    {PatternOf(config, norm.spec), RowPatternOf(norm.spec)}) {}

// The samples are N, the spatial elements the product of the dimensions *.
absl::Status ChannelNorm::Divide(const Shape& x, Geometry& geometry) const {
  const int rank = x.rank();
  const bool channels_last = spec().layout == norm::Layout::kChannelsLast;
  if (rank < 2) {
    return absl::InvalidArgumentError(absl::StrCat(
        "shape: ", x.ToString(), " has ", rank, rank == 1 ? " dimension" : " dimensions",
        ", wanted at least 2, ", channels_last ? "[N, *, C]" : "[N, C, *]"));
  }
  const int channel_dim = channels_last ? rank - 1 : 1;
  if (x.dim(channel_dim) != spec().channels) {
    return absl::InvalidArgumentError(absl::StrCat("shape[", channel_dim, "]: ", x.dim(channel_dim),
                                                   " channels in ", x.ToString(), ", wanted ",
                                                   spec().channels));
  }
  const int first = channels_last ? 1 : 2;
  const int last = channels_last ? rank - 1 : rank;
  geometry.samples = x.dim(0);
  geometry.spatial = x.Product(first, last);
  return CheckNotZero(x, first, last);
}

NormOperation::Dims ChannelNorm::RowDims(const Shape& x) const {
  if (spec().rows == norm::Rows::kGroup) return {x.dim(0), spec().groups};
  Dims dims(x.dims().begin(), x.dims().end());
  dims.back() = 1;
  return dims;
}

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
