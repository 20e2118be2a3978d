#include "client/verify/default_inputs.h"

#include <cstdint>
#include <utility>

#include "client/verify/reference_model.h"

namespace normd::client {
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

// Of the first input, and of the others.
struct InputDims {
  Dims first;
  Dims other;
};

InputDims Same(Dims dims) { return {dims, dims}; }

InputDims DimsFor(const v1::ModelConfig& config) {
  switch (config.operation_case()) {
    case v1::ModelConfig::kInstanceNorm:
      return Same(Image(config.instance_norm().channels(), config.layout()));
    case v1::ModelConfig::kGroupNorm:
      return Same(Image(config.group_norm().channels(), config.layout()));
    case v1::ModelConfig::kBatchNorm:
      return Same(Image(config.batch_norm().channels(), config.layout()));
    case v1::ModelConfig::kLayerNorm: return Same(Rows(config.layer_norm()));
    case v1::ModelConfig::kRmsNorm: return Same(Rows(config.rms_norm()));
    case v1::ModelConfig::kLinearNorm:
      return {{kRows, config.linear_norm().in_features()},
              {kRows, config.linear_norm().out_features()}};
    case v1::ModelConfig::OPERATION_NOT_SET: break;
  }
  return {};
}

}  // namespace

absl::StatusOr<std::vector<TensorSpec>> DefaultInputs(const v1::ModelConfig& config) {
  const InputDims dims = DimsFor(config);
  if (dims.first.empty()) {
    return absl::FailedPreconditionError("the model's operation is not known here: wanted a shape");
  }
  std::vector<TensorSpec> inputs;
  for (const std::string& name : InputNames(config)) {
    absl::StatusOr<Shape> shape = Shape::Create(inputs.empty() ? dims.first : dims.other);
    if (!shape.ok()) return shape.status();
    inputs.push_back({name, norm::DType::kFloat32, *std::move(shape)});
  }
  return inputs;
}

}  // namespace normd::client
