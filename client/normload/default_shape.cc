#include "client/normload/default_shape.h"

#include <cstdint>
#include <vector>

namespace normd::load {
namespace {

constexpr std::int64_t kSide = 56;
constexpr std::int64_t kRows = 8;

using Dims = std::vector<std::int64_t>;

Dims Image(std::int64_t channels, v1::Layout layout) {
  return layout == v1::CHANNELS_LAST ? Dims{1, kSide, kSide, channels}
                                     : Dims{1, channels, kSide, kSide};
}

template <typename Norm>
Dims Rows(const Norm& norm) {
  Dims dims = {kRows};
  dims.insert(dims.end(), norm.normalized_shape().begin(), norm.normalized_shape().end());
  return dims;
}

Dims DimsFor(const v1::ModelConfig& config) {
  switch (config.operation_case()) {
    case v1::ModelConfig::kInstanceNorm:
      return Image(config.instance_norm().channels(), config.layout());
    case v1::ModelConfig::kGroupNorm: return Image(config.group_norm().channels(), config.layout());
    case v1::ModelConfig::kBatchNorm: return Image(config.batch_norm().channels(), config.layout());
    case v1::ModelConfig::kLayerNorm: return Rows(config.layer_norm());
    case v1::ModelConfig::kRmsNorm: return Rows(config.rms_norm());
    case v1::ModelConfig::kLinearNorm: return {kRows, config.linear_norm().in_features()};
    case v1::ModelConfig::OPERATION_NOT_SET: break;
  }
  return {};
}

}  // namespace

absl::StatusOr<DefaultShapes> DefaultShapesFor(const v1::ModelConfig& config) {
  const Dims dims = DimsFor(config);
  if (dims.empty()) {
    return absl::FailedPreconditionError("the model's operation is not known here: wanted a shape");
  }
  absl::StatusOr<Shape> x = Shape::Create(dims);
  if (!x.ok()) return x.status();
  DefaultShapes shapes{*std::move(x), std::nullopt};
  const v1::LinearNorm::Epilogue& epilogue = config.linear_norm().epilogue();
  if (epilogue.add() || epilogue.multiply()) {
    absl::StatusOr<Shape> y = Shape::Create({kRows, config.linear_norm().out_features()});
    if (!y.ok()) return y.status();
    shapes.y = *std::move(y);
  }
  return shapes;
}

}  // namespace normd::load
