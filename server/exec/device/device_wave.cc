#include "server/exec/device/device_wave.h"

#include <algorithm>
#include <utility>

#include "server/exec/gather.h"

namespace normd {

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
  for (std::size_t i = 0; i < geometry.outputs.size(); ++i) {
    Output& output = outputs.emplace_back();
    output.bytes = static_cast<std::size_t>(geometry.outputs[i].bytes);
    output.memory = NamedOutput(*request, i);
    if (output.memory.empty()) continue;
    const MemoryPlace& place = request->outputs[i].place;
    output.addressable = access.Includes(place);
    output.on_device = output.addressable && !place.OnHost();
  }
  for (std::size_t o = 0; o < outputs.size(); ++o) {
    if (overwrites[o] < 0) continue;
    inputs[static_cast<std::size_t>(overwrites[o])].overwritten_by = static_cast<int>(o);
  }
  // In the order in which inputs are copied: copies that are joined may cover the gaps between.
  for (Input& input : inputs) {
    if (!input.on_device) input.offset = Place(input.bytes);
    if (input.there == nullptr && !IsOverwritten(input)) front_bytes += RoundUp(input.bytes);
  }
  for (std::size_t o = 0; o < outputs.size(); ++o) {
    if (outputs[o].on_device || outputs[o].bytes == 0) continue;
    const Input* const shared =
        overwrites[o] < 0 ? nullptr : &inputs[static_cast<std::size_t>(overwrites[o])];
    outputs[o].offset =
        shared != nullptr && !shared->on_device ? shared->offset : Place(outputs[o].bytes);
  }
  CountLink();
}

void DeviceWave::Item::CountLink() {
  std::size_t in = 0;
  std::size_t out = 0;
  for (const Input& input : inputs) in += input.on_device ? 0 : input.bytes;
  for (const Output& output : outputs) out += output.on_device ? 0 : output.bytes;
  link_bytes = std::max(in, out);
  all_on_device = link_bytes == 0;
}

bool DeviceWave::Item::IsOverwritten(const Input& input) const {
  return input.overwritten_by >= 0 &&
         !outputs[static_cast<std::size_t>(input.overwritten_by)].on_device;
}

std::size_t DeviceWave::Item::Place(std::size_t bytes) {
  const std::size_t offset = arena_bytes;
  ++places;
  tensor_bytes += bytes;
  arena_bytes += RoundUp(bytes);
  return offset;
}

void DeviceWave::Add(Item item) {
  for (Input& input : item.inputs) input.offset += arena_bytes;
  for (Output& output : item.outputs) output.offset += arena_bytes;
  arena_bytes += item.arena_bytes;
  front_bytes += item.front_bytes;
  link_bytes += item.link_bytes;
  request_bytes += static_cast<std::size_t>(item.request->geometry.LargerBytes());
  items.push_back(std::move(item));
}

}  // namespace normd
