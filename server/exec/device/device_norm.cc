#include "server/exec/device/device_norm.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"

namespace normd {
namespace {

// A parameter and its number of elements.
struct Sized {
  norm::ParamVector* param;
  std::int64_t elements;
};

std::array<Sized, 5> All(const norm::NormSpec& spec, norm::NormParams& params) {
  const std::int64_t table = spec.channels * std::max<std::int64_t>(spec.styles, 1);
  return {{{&params.gamma, table},
           {&params.beta, table},
           {&params.mean, spec.channels},
           {&params.variance, spec.channels},
           {&params.input_bias, spec.channels}}};
}

std::vector<int> OverwritesOf(const NormProgram& program, std::size_t outputs) {
  std::vector<int> overwrites;
  for (std::size_t o = 0; o < outputs; ++o) {
    const std::optional<std::size_t> input = OverwritableInput(program, o);
    overwrites.push_back(input ? static_cast<int>(*input) : DeviceProgram::kNone);
  }
  return overwrites;
}

}  // namespace

DeviceNorm::DeviceNorm(const NormProgram& program)
    : program_(program),
      inputs_(norm::InputsOf(program.Spec(norm::DType::kFloat32))),
      outputs_(norm::OutputsOf(program.Spec(norm::DType::kFloat32))),
      overwrites_(OverwritesOf(program, outputs_.size())) {}

absl::StatusOr<DeviceNorm::Copy> DeviceNorm::UploadTo(const NormProgram& program, Device& device) {
  Copy copy;
  copy.params = program.params;
  const auto params = All(program.Spec(norm::DType::kFloat32), copy.params);
  std::array<std::size_t, params.size()> offsets{};
  std::size_t total = 0;
  const auto bytes_of = [](const Sized& sized) {
    return static_cast<std::size_t>(sized.elements) * norm::SizeOf(sized.param->dtype);
  };
  for (std::size_t i = 0; i < params.size(); ++i) {
    if (params[i].param->data == nullptr) continue;
    offsets[i] = total;
    total += AlignForDevice(bytes_of(params[i]));
  }
  if (total == 0) return copy;

  absl::StatusOr<Buffer> memory = device.Allocate(MemoryKind::kDevice, total);
  if (!memory.ok()) return memory.status();
  copy.memory = *std::move(memory);
  absl::StatusOr<std::unique_ptr<DeviceStream>> stream = device.CreateStream(0);
  if (!stream.ok()) return stream.status();
  for (std::size_t i = 0; i < params.size(); ++i) {
    norm::ParamVector& param = *params[i].param;
    if (param.data == nullptr) continue;
    std::byte* target = copy.memory.data() + offsets[i];
    const absl::Status status =
        (*stream)->CopyIn(target, static_cast<const std::byte*>(param.data), bytes_of(params[i]));
    if (!status.ok()) return status;
    param.data = target;
  }
  if (absl::Status status = (*stream)->Wait(); !status.ok()) return status;
  return copy;
}

absl::StatusOr<std::unique_ptr<DeviceNorm>> DeviceNorm::Upload(
    const NormProgram& program, absl::Span<const std::unique_ptr<Device>> devices) {
  std::unique_ptr<DeviceNorm> state(new DeviceNorm(program));
  for (const std::unique_ptr<Device>& device : devices) {
    absl::StatusOr<Copy> copy = UploadTo(program, *device);
    if (!copy.ok()) {
      return absl::Status(copy.status().code(), absl::StrCat("parameters on ", device->name(), ": ",
                                                             copy.status().message()));
    }
    state->copies_.push_back(*std::move(copy));
  }
  return state;
}

norm::Segment DeviceNorm::SegmentOf(const norm::NormSpec& spec,
                                    const DeviceSegment& segment) const {
  norm::Segment result;
  result.samples = segment.samples;
  result.spatial = segment.spatial;
  result.spatial_runs = segment.spatial_runs;
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    norm::SetInput(spec, inputs_[i], segment.inputs[i], segment.input_bytes[i], result);
  }
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    norm::SetOutput(outputs_[i], segment.outputs[i], result);
  }
  return result;
}

absl::Status DeviceNorm::Launch(const DeviceSite& site, norm::DType dtype,
                                absl::Span<const DeviceSegment> segments) const {
  const norm::NormParams& params = copies_[site.device].params;
  for (std::size_t at = 0; at < segments.size();) {
    const ChannelRange channels = segments[at].channels;
    absl::InlinedVector<norm::Segment, 16> run;
    for (; at < segments.size() && segments[at].channels == channels; ++at) {
      run.push_back(SegmentOf(program_.Spec(dtype), segments[at]));
    }
    absl::Status status = site.stream.Normalize(SpecOf(program_.Spec(dtype), channels),
                                                ParamsOf(params, channels), run.data(), run.size());
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace normd
