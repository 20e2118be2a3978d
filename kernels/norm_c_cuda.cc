#include <cuda_runtime_api.h>

#include <cstddef>

#include "kernels/cuda/linear_norm.h"
#include "kernels/cuda/normalize.h"
#include "kernels/norm_c_convert.h"

namespace norm = normd::norm;
using norm::Status;

struct norm_cuda_device {
  norm::cuda::DeviceLimits limits;
};

namespace {

Status ParseStrategy(const char* name, norm::cuda::Strategy* strategy) {
  *strategy = norm::cuda::Strategy::kAuto;
  return name == nullptr ? Status() : norm::cuda::ParseStrategy(name, strategy);
}

const double kAnyAddress[1] = {};
const std::int64_t kAnyIndex = 0;
const float kAnyFloat = 0;

// Validates everything but the addresses, which need not be known when the workspace is allocated:
// the spec says which tensors are there.
Status CheckCounts(const norm::NormSpec& spec, const norm::c::Segments& segments) {
  const auto if_wanted = [](bool wanted) { return wanted ? kAnyAddress : nullptr; };
  const auto writable = [](const void* data) { return const_cast<void*>(data); };
  norm::NormParams params;
  params.mean.data = if_wanted(spec.statistics == norm::Statistics::kGiven);
  params.variance.data = params.mean.data;
  const bool table = spec.style == norm::Style::kIndex || spec.style == norm::Style::kMix;
  params.gamma.data = if_wanted(table);
  params.input_bias.data = if_wanted(spec.residual_out && !spec.residual);
  if (Status status = norm::ValidateSpec(spec, params); !status.ok()) return status;
  for (size_t i = 0; i < segments.size(); ++i) {
    norm::Segment segment = segments.data()[i];
    segment.x = kAnyAddress;
    segment.y = writable(kAnyAddress);
    segment.residual = if_wanted(spec.residual);
    segment.residual_out = writable(if_wanted(spec.residual_out));
    segment.params = nullptr;
    segment.other = if_wanted(spec.takes_other());
    segment.gate = if_wanted(spec.gate);
    segment.scale = if_wanted(spec.scale);
    segment.shift = if_wanted(spec.shift);
    segment.style_index = spec.style == norm::Style::kIndex ? &kAnyIndex : nullptr;
    segment.style_weights = if_wanted(spec.style == norm::Style::kMix);
    segment.style_tensor = if_wanted(spec.style == norm::Style::kTensor);
    segment.scale_out = spec.quantization_scale == norm::QuantizationScale::kStatic
                            ? nullptr
                            : const_cast<float*>(&kAnyFloat);
    if (Status status = norm::ValidateSegments(spec, &segment, 1); !status.ok()) return status;
  }
  return Status();
}

// A spec whose sizes are safe to compute with.
Status ToCheckedSpec(const norm_linear_spec* in, norm::LinearNormSpec* out) {
  if (Status status = norm::c::ToLinearSpec(in, out); !status.ok()) return status;
  alignas(8) static const double kAnyWeight = 0;
  norm::LinearNormParams params;
  params.weight.data = &kAnyWeight;
  return norm::ValidateLinearNorm(*out, params);
}

Status ParseTile(const char* name, norm::cuda::LinearTile* tile) {
  *tile = norm::cuda::LinearTile::kAuto;
  return name == nullptr ? Status() : norm::cuda::ParseLinearTile(name, tile);
}

Status ToOptions(const norm_cuda_launch& launch, norm::cuda::LaunchOptions* options) {
  for (const Status& status :
       {norm::c::CheckStructSize("launch", launch.struct_size, sizeof(norm_cuda_launch)),
        ParseStrategy(launch.strategy, &options->forced)}) {
    if (!status.ok()) return status;
  }
  options->stream = static_cast<cudaStream_t>(launch.stream);
  options->workspace = launch.workspace;
  options->workspace_bytes = launch.workspace_bytes;
  options->new_workspace = launch.new_workspace != 0;
  return Status();
}

template <typename... Tensors>
norm_result WorkspaceBytes(const norm_cuda_device* device, const norm_spec* spec,
                           const char* strategy, size_t* out, Tensors... tensors) {
  return norm::c::Guarded([&]() -> Status {
    norm::NormSpec cpp_spec;
    norm::cuda::Strategy forced;
    norm::c::Segments segments;
    for (const Status& status :
         {norm::c::CheckNotNull("device", device), norm::c::CheckNotNull("out", out),
          norm::c::ToSpec(spec, &cpp_spec), segments.Take(tensors...),
          ParseStrategy(strategy, &forced)}) {
      if (!status.ok()) return status;
    }
    if (Status status = CheckCounts(cpp_spec, segments); !status.ok()) return status;
    *out = norm::cuda::WorkspaceBytes(cpp_spec, segments.data(), segments.size(), device->limits,
                                      forced);
    return Status();
  });
}

template <typename... Tensors>
norm_result Normalize(const norm_cuda_device* device, const norm_spec* spec,
                      const norm_params* params, const norm_cuda_launch* launch,
                      Tensors... tensors) {
  return norm::c::Guarded([&]() -> Status {
    norm::NormSpec cpp_spec;
    norm::NormParams cpp_params;
    norm::c::Segments segments;
    for (const Status& status :
         {norm::c::CheckNotNull("device", device), norm::c::CheckNotNull("launch", launch),
          norm::c::ToSpec(spec, &cpp_spec), norm::c::ToParams(params, &cpp_params),
          segments.Take(tensors...)}) {
      if (!status.ok()) return status;
    }
    norm::cuda::LaunchOptions options;
    if (Status status = ToOptions(*launch, &options); !status.ok()) return status;
    return norm::cuda::Normalize(cpp_spec, cpp_params, segments.data(), segments.size(),
                                 device->limits, options);
  });
}

}  // namespace

norm_result norm_cuda_device_open(int32_t ordinal, norm_cuda_device** out) {
  return norm::c::Guarded([&]() -> Status {
    if (Status status = norm::c::CheckNotNull("out", out); !status.ok()) return status;
    norm_cuda_device device;
    Status status = norm::cuda::QueryDeviceLimits(ordinal, &device.limits);
    if (status.ok()) *out = new norm_cuda_device(device);
    return status;
  });
}

void norm_cuda_device_close(norm_cuda_device* device) { delete device; }

norm_result norm_cuda_workspace_bytes(const norm_cuda_device* device, const norm_spec* spec,
                                      const norm_segment* segments, size_t count,
                                      const char* strategy, size_t* out) {
  return WorkspaceBytes(device, spec, strategy, out, segments, count);
}

norm_result norm_cuda_batch_workspace_bytes(const norm_cuda_device* device, const norm_spec* spec,
                                            const norm_batch* batch, const char* strategy,
                                            size_t* out) {
  return WorkspaceBytes(device, spec, strategy, out, batch);
}

norm_result norm_cuda_workspace_init(void* workspace, size_t bytes, void* stream) {
  return norm::c::Guarded([&] {
    return norm::cuda::InitWorkspace(workspace, bytes, static_cast<cudaStream_t>(stream));
  });
}

norm_result norm_cuda_normalize(const norm_cuda_device* device, const norm_spec* spec,
                                const norm_params* params, const norm_segment* segments,
                                size_t count, const norm_cuda_launch* launch) {
  return Normalize(device, spec, params, launch, segments, count);
}

norm_result norm_cuda_normalize_batch(const norm_cuda_device* device, const norm_spec* spec,
                                      const norm_params* params, const norm_batch* batch,
                                      const norm_cuda_launch* launch) {
  return Normalize(device, spec, params, launch, batch);
}

norm_result norm_cuda_linear_weight_bytes(const norm_cuda_device* device,
                                          const norm_linear_spec* spec, size_t* out) {
  return norm::c::Guarded([&]() -> Status {
    norm::LinearNormSpec cpp_spec;
    for (const Status& status :
         {norm::c::CheckNotNull("device", device), norm::c::CheckNotNull("out", out),
          ToCheckedSpec(spec, &cpp_spec)}) {
      if (!status.ok()) return status;
    }
    *out = norm::cuda::LinearWeightBytes(cpp_spec, device->limits);
    return Status();
  });
}

norm_result norm_cuda_linear_prepare(const norm_cuda_device* device, const norm_linear_spec* spec,
                                     const norm_linear_params* params, void* prepared, size_t bytes,
                                     void* stream) {
  return norm::c::Guarded([&]() -> Status {
    norm::LinearNormSpec cpp_spec;
    norm::LinearNormParams cpp_params;
    for (const Status& status :
         {norm::c::CheckNotNull("device", device), norm::c::ToLinearSpec(spec, &cpp_spec),
          norm::c::ToLinearParams(params, &cpp_params)}) {
      if (!status.ok()) return status;
    }
    return norm::cuda::PrepareLinearWeights(cpp_spec, cpp_params, device->limits, prepared, bytes,
                                            static_cast<cudaStream_t>(stream));
  });
}

norm_result norm_cuda_linear_workspace_bytes(const norm_cuda_device* device,
                                             const norm_linear_spec* spec, int64_t samples,
                                             const char* tile, size_t* out) {
  return norm::c::Guarded([&]() -> Status {
    norm::LinearNormSpec cpp_spec;
    norm::cuda::LinearTile forced;
    for (const Status& status :
         {norm::c::CheckNotNull("device", device), norm::c::CheckNotNull("out", out),
          ToCheckedSpec(spec, &cpp_spec), ParseTile(tile, &forced)}) {
      if (!status.ok()) return status;
    }
    *out = norm::cuda::LinearWorkspaceBytes(cpp_spec, samples, device->limits, forced);
    return Status();
  });
}

norm_result norm_cuda_linear_norm(const norm_cuda_device* device, const norm_linear_spec* spec,
                                  const void* prepared, const norm_linear_segment* segments,
                                  size_t count, const norm_cuda_launch* launch) {
  return norm::c::Guarded([&]() -> Status {
    norm::LinearNormSpec cpp_spec;
    for (const Status& status :
         {norm::c::CheckNotNull("device", device), norm::c::CheckNotNull("launch", launch),
          norm::c::CheckNotNull("prepared", prepared), norm::c::ToLinearSpec(spec, &cpp_spec),
          norm::c::CheckSegments(segments, count)}) {
      if (!status.ok()) return status;
    }
    norm::cuda::LinearLaunchOptions options;
    for (const Status& status :
         {norm::c::CheckStructSize("launch", launch->struct_size, sizeof(norm_cuda_launch)),
          ParseTile(launch->strategy, &options.forced)}) {
      if (!status.ok()) return status;
    }
    options.stream = static_cast<cudaStream_t>(launch->stream);
    options.workspace = launch->workspace;
    options.workspace_bytes = launch->workspace_bytes;
    return norm::cuda::LinearNorm(cpp_spec, prepared, norm::c::ToSegments(segments), count,
                                  device->limits, options);
  });
}
