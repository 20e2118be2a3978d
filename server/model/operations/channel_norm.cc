#include "server/model/operations/channel_norm.h"

#include "absl/strings/str_cat.h"

namespace normd {
namespace {

ShapePattern PatternOf(std::int64_t channels, v1::Layout layout) {
  if (layout == v1::CHANNELS_LAST) return {kAnySize, kAnyDimensions, channels};
  return {kAnySize, channels, kAnyDimensions};
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

ChannelNorm::ChannelNorm(const v1::ModelConfig& config, const norm::NormSpec& spec,
                         const NormParameters& parameters)
    : NormOperation(config, spec, parameters, Shape::Create({spec.channels}).value_or(Shape()),
                    PatternOf(spec.channels, config.layout())) {}

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

}  // namespace normd
