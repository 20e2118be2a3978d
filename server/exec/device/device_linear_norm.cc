#include "server/exec/device/device_linear_norm.h"

#include <algorithm>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"

namespace normd {
namespace {

// Appends a part to a block that has `total` bytes so far, and returns its place.
std::size_t Place(std::size_t bytes, std::size_t& total) {
  const std::size_t begin = total;
  total += AlignForDevice(bytes);
  return begin;
}

norm::LinearNormSpec With(norm::LinearNormSpec spec, std::size_t precision) {
  spec.precision = static_cast<norm::Precision>(precision);
  return spec;
}

std::size_t BytesOf(const norm::ParamVector& param, std::int64_t elements) {
  return param.data == nullptr ? 0 : static_cast<std::size_t>(elements) * norm::SizeOf(param.dtype);
}

}  // namespace

LinearBlock MakeLinearBlock(const norm::LinearNormSpec& spec, const Device& device, int lanes) {
  LinearBlock block;
  for (std::size_t i = 0; i < kPrecisionCount; ++i) {
    const LinearSizes sizes = device.SizesOf(With(spec, i));
    block.prepared_bytes[i] = sizes.prepared;
    block.prepared_offset[i] = Place(sizes.prepared, block.bytes);
    block.workspace_bytes = std::max(block.workspace_bytes, sizes.workspace);
  }
  std::size_t rounded = 0;
  Place(block.workspace_bytes, rounded);
  block.workspace_bytes = rounded;
  block.workspace_offset = Place(rounded * static_cast<std::size_t>(lanes), block.bytes);
  return block;
}

absl::StatusOr<DeviceLinearNorm::Copy> DeviceLinearNorm::UploadTo(const LinearNormProgram& program,
                                                                  Device& device, int lanes) {
  const norm::LinearNormSpec& spec = program.spec;
  Copy copy;
  copy.block = MakeLinearBlock(spec, device, lanes);
  absl::StatusOr<Buffer> memory = device.Allocate(MemoryKind::kDevice, copy.block.bytes);
  if (!memory.ok()) return memory.status();
  copy.memory = *std::move(memory);
  copy.data = copy.memory.data();

  norm::LinearNormParams params = program.params;
  const std::size_t weight_bytes = BytesOf(params.weight, spec.in_features * spec.out_features);
  const std::size_t bias_bytes = BytesOf(params.bias, spec.out_features);
  std::size_t total = 0;
  Place(weight_bytes, total);
  const std::size_t bias_offset = Place(bias_bytes, total);
  absl::StatusOr<Buffer> source = device.Allocate(MemoryKind::kDevice, total);
  if (!source.ok()) return source.status();
  absl::StatusOr<std::unique_ptr<DeviceStream>> created = device.CreateStream(0);
  if (!created.ok()) return created.status();
  DeviceStream& stream = **created;

  absl::Status status = stream.CopyIn(
      source->data(), static_cast<const std::byte*>(params.weight.data), weight_bytes);
  params.weight.data = source->data();
  if (status.ok() && bias_bytes > 0) {
    status = stream.CopyIn(source->data() + bias_offset,
                           static_cast<const std::byte*>(params.bias.data), bias_bytes);
    params.bias.data = source->data() + bias_offset;
  }
  for (std::size_t i = 0; i < kPrecisionCount && status.ok(); ++i) {
    status = stream.PrepareLinear(
        With(spec, i), params,
        MutableBytes(copy.data + copy.block.prepared_offset[i], copy.block.prepared_bytes[i]));
  }
  // Also after an error: enqueued work reads the memory.
  const absl::Status done = stream.Wait();
  if (status.ok()) status = done;
  if (!status.ok()) return status;
  return copy;
}

absl::StatusOr<std::unique_ptr<DeviceLinearNorm>> DeviceLinearNorm::Upload(
    const LinearNormProgram& program, absl::Span<const std::unique_ptr<Device>> devices,
    int lanes_per_device) {
  std::unique_ptr<DeviceLinearNorm> state(new DeviceLinearNorm(program));
  for (const std::unique_ptr<Device>& device : devices) {
    absl::StatusOr<Copy> copy = UploadTo(program, *device, lanes_per_device);
    if (!copy.ok()) {
      return absl::Status(
          copy.status().code(),
          absl::StrCat("linear_norm: weights in every precision and ", lanes_per_device,
                       " lanes' workspace on ", device->name(), ": ", copy.status().message()));
    }
    state->copies_.push_back(*std::move(copy));
  }
  return state;
}

absl::Span<const int> DeviceLinearNorm::overwrites() const {
  static constexpr int kY[] = {1};
  static constexpr int kNothing[] = {kNone};
  return program_.spec.epilogue.needs_y() ? kY : kNothing;
}

absl::Status DeviceLinearNorm::Launch(const DeviceSite& site, norm::DType dtype,
                                      absl::Span<const DeviceSegment> segments) const {
  norm::LinearNormSpec spec = program_.spec;
  spec.dtype = dtype;
  for (std::size_t i = 0; i < kPrecisionCount; ++i) {
    spec.precision = static_cast<norm::Precision>(i);
    absl::InlinedVector<norm::LinearNormSegment, 16> chosen;
    for (const DeviceSegment& segment : segments) {
      if (segment.options.precision != spec.precision) continue;
      const std::byte* y = segment.inputs.size() > 1 ? segment.inputs[1] : nullptr;
      chosen.push_back({segment.inputs[0], y, segment.outputs[0], segment.samples});
    }
    if (chosen.empty()) continue;
    absl::Status status =
        site.stream.LinearNorm(spec, Prepared(site.device, spec.precision), chosen.data(),
                               chosen.size(), Workspace(site.device, site.lane));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

ConstBytes DeviceLinearNorm::Prepared(std::size_t device, norm::Precision precision) const {
  const Copy& copy = copies_[device];
  const auto index = static_cast<std::size_t>(precision);
  return ConstBytes(copy.data + copy.block.prepared_offset[index],
                    copy.block.prepared_bytes[index]);
}

MutableBytes DeviceLinearNorm::Workspace(std::size_t device, int lane) const {
  const Copy& copy = copies_[device];
  return MutableBytes(copy.data + copy.block.workspace_offset +
                          static_cast<std::size_t>(lane) * copy.block.workspace_bytes,
                      copy.block.workspace_bytes);
}

}  // namespace normd
