#include "server/exec/device/device_wave.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/exec/gather.h"

namespace normd {
namespace {

// Whether a tensor is to be read or written on a device.
bool NamesDevice(const Request& request) {
  const auto on_device = [](const auto& memory) { return !memory.place.OnHost(); };
  return std::any_of(request.inputs.begin(), request.inputs.end(), on_device) ||
         std::any_of(request.outputs.begin(), request.outputs.end(), on_device);
}

}  // namespace

DeviceWave::Item::Item(std::unique_ptr<Request> request_in, absl::Span<const int> overwrites,
                       const MemoryAccess& access)
    : request(std::move(request_in)) {
  const Geometry& geometry = request->geometry;
  for (std::size_t i = 0; i < request->inputs.size(); ++i) {
    const InputMemory& memory = request->inputs[i];
    Input& input = inputs.emplace_back(Input{SliceReader(memory.views)});
    input.bytes = static_cast<std::size_t>(geometry.inputs[i].bytes);
    if (access.Includes(memory.place)) input.there = InPlaceInput(*request, i);
    input.on_device = input.there != nullptr && !memory.place.OnHost();
    reads_there = reads_there || input.there != nullptr;
  }
  for (std::size_t o = 0; o < geometry.outputs.size(); ++o) {
    Output& output = outputs.emplace_back();
    output.bytes = static_cast<std::size_t>(geometry.outputs[o].bytes);
    output.memory = NamedOutput(*request, o);
    output.addressable = output.bytes == 0;
    if (!output.memory.empty()) {
      const MemoryPlace& place = request->outputs[o].place;
      output.addressable = access.Includes(place);
      output.on_device = output.addressable && !place.OnHost();
    }
    if (overwrites[o] < 0 || output.on_device) continue;
    inputs[static_cast<std::size_t>(overwrites[o])].overwritten_by = static_cast<int>(o);
  }
  // In the order in which inputs are copied: copies that are joined may cover the gaps between.
  for (Input& input : inputs) {
    if (input.there == nullptr && input.overwritten_by < 0) {
      front_bytes += AlignForDevice(input.bytes);
    }
    if (input.on_device) continue;
    input.offset = Place(input.bytes);
    link_in_bytes += input.bytes;
  }
  for (std::size_t o = 0; o < outputs.size(); ++o) {
    if (outputs[o].on_device || outputs[o].bytes == 0) continue;
    const Input* const shared =
        overwrites[o] < 0 ? nullptr : &inputs[static_cast<std::size_t>(overwrites[o])];
    outputs[o].offset =
        shared != nullptr && !shared->on_device ? shared->offset : Place(outputs[o].bytes);
    link_out_bytes += outputs[o].bytes;
  }
}

std::size_t DeviceWave::Item::Place(std::size_t bytes) {
  const std::size_t offset = arena_bytes;
  ++places;
  tensor_bytes += bytes;
  arena_bytes += AlignForDevice(bytes);
  return offset;
}

DeviceSegment DeviceWave::Item::Segment(const PieceSegment& part,
                                        const ChannelRange& channels) const {
  DeviceSegment segment;
  for (const Input& input : inputs) {
    segment.inputs.push_back(input.place + part.OffsetIn(input.bytes));
    segment.input_bytes.push_back(static_cast<std::int64_t>(part.BytesOf(input.bytes)));
  }
  for (const Output& output : outputs) {
    segment.outputs.push_back(output.bytes == 0 ? nullptr
                                                : output.place + part.OffsetIn(output.bytes));
  }
  segment.samples = part.samples;
  segment.spatial = part.spatial;
  segment.spatial_runs = part.spatial_runs;
  segment.channels = channels;
  segment.options = request->options;
  return segment;
}

void DeviceWave::Add(Item item) {
  for (Input& input : item.inputs) input.offset += arena_bytes;
  for (Output& output : item.outputs) output.offset += arena_bytes;
  arena_bytes += item.arena_bytes;
  front_bytes += item.front_bytes;
  link_bytes += std::max(item.link_in_bytes, item.link_out_bytes);
  request_bytes += static_cast<std::size_t>(item.request->geometry.LargerBytes());
  items.push_back(std::move(item));
}

DeviceWaves::DeviceWaves(Batch& batch, bool large, absl::Span<const int> overwrites,
                         const MemoryAccess& access, std::size_t arena_bytes)
    : batch_(batch),
      large_(large),
      overwrites_(overwrites),
      access_(access),
      arena_bytes_(arena_bytes) {
  if (!large) return;
  std::stable_partition(batch.requests.begin(), batch.requests.end(),
                        [](const auto& request) { return NamesDevice(*request); });
}

DeviceWave DeviceWaves::Next() {
  DeviceWave wave;
  for (; !Done(); ++next_) {
    std::unique_ptr<Request>& request = batch_.requests[next_];
    DeviceWave::Item item(std::move(request), overwrites_, access_);
    if (item.arena_bytes > arena_bytes_) {
      absl::Status status = absl::ResourceExhaustedError(absl::StrCat(
          "tensor: ", item.tensor_bytes, " bytes, the lane's device memory holds ", arena_bytes_));
      Fail(std::move(item.request), std::move(status));
      continue;
    }
    const bool copies = item.link_in_bytes > 0 || item.link_out_bytes > 0;
    const bool is_alone = large_ && wave.request_bytes > 0 &&
                          item.request->geometry.LargerBytes() > 0 &&
                          copies != (wave.link_bytes > 0);
    if (is_alone || wave.arena_bytes + item.arena_bytes > arena_bytes_) {
      request = std::move(item.request);
      break;
    }
    wave.Add(std::move(item));
  }
  return wave;
}

}  // namespace normd
