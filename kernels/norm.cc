#include "kernels/norm.h"

#include <limits>
#include <string>

#include "kernels/check.h"

namespace normd::norm {
namespace {

NormSpec MakeSpec(Statistics statistics, std::int64_t channels, std::int64_t groups, DType dtype) {
  NormSpec spec;
  spec.statistics = statistics;
  spec.channels = channels;
  spec.groups = groups;
  spec.dtype = dtype;
  return spec;
}

}  // namespace

NormSpec InstanceNormSpec(std::int64_t channels, DType dtype) {
  return MakeSpec(Statistics::kMeanVariance, channels, channels, dtype);
}

NormSpec GroupNormSpec(std::int64_t channels, std::int64_t groups, DType dtype) {
  return MakeSpec(Statistics::kMeanVariance, channels, groups, dtype);
}

NormSpec LayerNormSpec(std::int64_t normalized_elements, DType dtype) {
  return MakeSpec(Statistics::kMeanVariance, normalized_elements, 1, dtype);
}

NormSpec RmsNormSpec(std::int64_t normalized_elements, DType dtype) {
  return MakeSpec(Statistics::kMeanSquare, normalized_elements, 1, dtype);
}

NormSpec BatchNormSpec(std::int64_t channels, DType dtype) {
  return MakeSpec(Statistics::kGiven, channels, channels, dtype);
}

Status ValidateSpec(const NormSpec& spec, const NormParams& params) {
  if (!IsValid(spec.dtype)) {
    return InvalidArgument("dtype: " + std::to_string(static_cast<int>(spec.dtype)) +
                           " is not float32, float64, float16 or bfloat16");
  }
  if (spec.channels <= 0) {
    return InvalidArgument("channels: " + std::to_string(spec.channels) + ", wanted at least 1");
  }
  if (spec.groups <= 0 || spec.channels % spec.groups != 0) {
    return InvalidArgument("groups: " + std::to_string(spec.groups) + ", wanted a divisor of " +
                           std::to_string(spec.channels) + " channels");
  }
  if (Status status = CheckEps(spec.eps); !status.ok()) return status;
  if (static_cast<int>(spec.statistics) > static_cast<int>(Statistics::kGiven)) {
    return InvalidArgument("statistics: unknown value");
  }
  if (static_cast<int>(spec.layout) > static_cast<int>(Layout::kChannelsLast)) {
    return InvalidArgument("layout: unknown value");
  }
  if (Status status = CheckActivation(spec.activation); !status.ok()) return status;
  if (spec.residual_out && !spec.residual) {
    return InvalidArgument("residual_out: set without residual, of which it is the sum");
  }
  const bool given = spec.statistics == Statistics::kGiven;
  if (given != (params.mean.data != nullptr) || given != (params.variance.data != nullptr)) {
    return InvalidArgument(given ? "mean and variance: missing, the statistics are given"
                                 : "mean and variance: present, but each row takes its own");
  }
  for (const Status& status :
       {CheckParam("gamma", params.gamma), CheckParam("beta", params.beta),
        CheckParam("mean", params.mean), CheckParam("variance", params.variance)}) {
    if (!status.ok()) return status;
  }
  return Status();
}

namespace {

// InvalidArgument unless each tensor is there exactly when it is wanted, and aligned.
Status CheckTensors(const NormSpec& spec, const Segment& segment, std::size_t index,
                    InputAlignment input) {
  struct Tensor {
    const char* name;
    const void* data;
    bool wanted;
    bool aligned;
  };
  const bool aligned = input == InputAlignment::kElement;
  const Tensor tensors[] = {{"x", segment.x, true, aligned},
                            {"y", segment.y, true, true},
                            {"residual", segment.residual, spec.residual, aligned},
                            {"residual_out", segment.residual_out, spec.residual_out, true}};
  for (const Tensor& tensor : tensors) {
    const auto refused = [&](const char* why) {
      return InvalidArgument("segments[" + std::to_string(index) + "]." + tensor.name + ": " + why);
    };
    if (tensor.wanted && tensor.data == nullptr) return refused("null");
    if (!tensor.wanted && tensor.data != nullptr) return refused("set, but the spec has none");
    if (tensor.aligned && !IsAligned(tensor.data, spec.dtype)) {
      return refused("not aligned to its element");
    }
  }
  return Status();
}

}  // namespace

Status ValidateSegments(const NormSpec& spec, const Segment* segments, std::size_t count,
                        InputAlignment input) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  const std::uintptr_t alignment = SizeOf(spec.dtype);
  for (std::size_t i = 0; i < count; ++i) {
    const Segment& segment = segments[i];
    const auto where = [i](const char* field) {
      return "segments[" + std::to_string(i) + "]." + field + ": ";
    };
    if (segment.samples < 0) {
      return InvalidArgument(where("samples") + std::to_string(segment.samples) + " is negative");
    }
    if (segment.spatial < 0) {
      return InvalidArgument(where("spatial") + std::to_string(segment.spatial) + " is negative");
    }
    if (segment.samples == 0 || segment.spatial == 0) continue;
    std::int64_t limit = kMax / static_cast<std::int64_t>(alignment);
    for (std::int64_t factor : {segment.samples, segment.spatial, spec.channels}) {
      if (factor > limit) return InvalidArgument(where("samples") + "bytes overflow 63 bits");
      limit /= factor;
    }
    if (Status status = CheckTensors(spec, segment, i, input); !status.ok()) return status;
    if (segment.params == nullptr) continue;
    if (Status status = ValidateSpec(spec, *segment.params); !status.ok()) {
      return InvalidArgument(where("params") + status.message());
    }
  }
  return Status();
}

}  // namespace normd::norm
