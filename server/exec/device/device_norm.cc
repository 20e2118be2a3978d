#include "server/exec/device/device_norm.h"

#include <array>
#include <cstddef>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"

namespace normd {
namespace {

constexpr std::size_t kAlignment = 256;

std::array<norm::ParamVector*, 4> All(norm::NormParams& params) {
  return {&params.gamma, &params.beta, &params.mean, &params.variance};
}

}  // namespace

absl::StatusOr<DeviceNorm::Copy> DeviceNorm::UploadTo(const norm::NormParams& host,
                                                      std::int64_t channels, Device& device) {
  Copy copy;
  copy.params = host;
  std::array<std::size_t, 4> offsets{};
  std::size_t total = 0;
  const auto bytes_of = [channels](const norm::ParamVector& param) {
    return static_cast<std::size_t>(channels) * norm::SizeOf(param.dtype);
  };
  const auto params = All(copy.params);
  for (std::size_t i = 0; i < params.size(); ++i) {
    if (params[i]->data == nullptr) continue;
    offsets[i] = total;
    total += (bytes_of(*params[i]) + kAlignment - 1) / kAlignment * kAlignment;
  }
  if (total == 0) return copy;

  absl::StatusOr<Buffer> memory = device.Allocate(MemoryKind::kDevice, total);
  if (!memory.ok()) return memory.status();
  copy.memory = *std::move(memory);
  absl::StatusOr<std::unique_ptr<DeviceStream>> stream = device.CreateStream(0);
  if (!stream.ok()) return stream.status();
  for (std::size_t i = 0; i < params.size(); ++i) {
    if (params[i]->data == nullptr) continue;
    std::byte* target = copy.memory.data() + offsets[i];
    const absl::Status status = (*stream)->CopyIn(
        target, static_cast<const std::byte*>(params[i]->data), bytes_of(*params[i]));
    if (!status.ok()) return status;
    params[i]->data = target;
  }
  if (absl::Status status = (*stream)->Wait(); !status.ok()) return status;
  return copy;
}

absl::StatusOr<std::unique_ptr<DeviceNorm>> DeviceNorm::Upload(const NormProgram& program,
                                                               absl::Span<Device* const> devices) {
  const norm::NormSpec& spec = program.Spec(norm::DType::kFloat32);
  if (spec.residual) {
    return absl::FailedPreconditionError(
        "device: the addition of a residual is computed on the CPU only so far, wanted a server "
        "with --device=cpu");
  }
  std::unique_ptr<DeviceNorm> state(new DeviceNorm(program));
  const std::int64_t channels = spec.channels;
  for (Device* device : devices) {
    absl::StatusOr<Copy> copy = UploadTo(program.params, channels, *device);
    if (!copy.ok()) {
      return absl::Status(copy.status().code(), absl::StrCat("parameters on ", device->name(), ": ",
                                                             copy.status().message()));
    }
    state->copies_.push_back(*std::move(copy));
  }
  return state;
}

absl::Span<const int> DeviceNorm::overwrites() const {
  static constexpr int kOverwrites[] = {0};
  return kOverwrites;
}

absl::Status DeviceNorm::Launch(const DeviceSite& site, norm::DType dtype,
                                absl::Span<const DeviceSegment> segments) const {
  const norm::NormParams& params = copies_[site.device].params;
  for (std::size_t at = 0; at < segments.size();) {
    const ChannelRange channels = segments[at].channels;
    absl::InlinedVector<norm::Segment, 16> run;
    for (; at < segments.size() && segments[at].channels == channels; ++at) {
      const DeviceSegment& segment = segments[at];
      run.push_back({segment.inputs[0], segment.outputs[0], segment.samples, segment.spatial});
    }
    absl::Status status = site.stream.Normalize(SpecOf(program_.Spec(dtype), channels),
                                                ParamsOf(params, channels), run.data(), run.size());
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace normd
