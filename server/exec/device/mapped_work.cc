#include "absl/container/inlined_vector.h"
#include "server/exec/device/device_work.h"
#include "server/exec/gather.h"

namespace normd {
namespace {

// The place of an input: where it lies or, if it is gathered, its output's memory or `chunk`, which
// then advances.
const std::byte* PlaceOf(const DeviceWave::Item& item, std::size_t index, std::byte*& chunk) {
  const DeviceWave::Input& input = item.inputs[index];
  if (input.there != nullptr) return input.there;
  std::byte* to = chunk;
  if (input.overwritten_by >= 0) {
    to = item.outputs[static_cast<std::size_t>(input.overwritten_by)].memory.data();
  } else {
    chunk += AlignForDevice(input.bytes);
  }
  GatherInput(*item.request, index, to);
  return to;
}

}  // namespace

bool CanRunMapped(const DeviceWave& wave, std::size_t most_bytes, const Staging& staging) {
  if (wave.link_bytes > most_bytes || wave.front_bytes > staging.chunk_bytes()) return false;
  for (const DeviceWave::Item& item : wave.items) {
    for (const DeviceWave::Output& output : item.outputs) {
      if (!output.addressable) return false;
    }
  }
  return true;
}

absl::Status RunMapped(const DeviceWork& work, DeviceWave& wave) {
  const TimePoint begin = work.clock.Now();
  absl::InlinedVector<DeviceSegment, 16> segments;
  {
    DeviceRange range(work.device, "gather");
    std::byte* chunk = work.staging.idle_chunk();
    for (DeviceWave::Item& item : wave.items) {
      for (std::size_t i = 0; i < item.inputs.size(); ++i) {
        item.inputs[i].place = PlaceOf(item, i, chunk);
      }
      for (DeviceWave::Output& output : item.outputs) output.place = output.memory.data();
      const Geometry& geometry = item.request->geometry;
      const PieceSegment whole{
          0, 0, 1, 1, geometry.samples, geometry.spatial, geometry.spatial_runs};
      segments.push_back(item.Segment(whole, geometry.channels));
      item.ReleaseInputs();
    }
  }
  const TimePoint gathered = work.clock.Now();
  wave.times[Stage::kGather] = gathered - begin;
  DeviceRange range(work.device, "compute");
  absl::Status status = work.program.Launch(work.site, work.dtype, segments);
  if (status.ok()) status = work.site.stream.Wait();
  if (!status.ok()) {
    work.streams.Drain();
    return status;
  }
  // Marks around the kernels would cost more than they would leave out.
  wave.times[Stage::kCompute] = work.clock.Now() - gathered;
  // The kernels read and write each byte once, over the link unless it is on the device.
  for (const DeviceWave::Item& item : wave.items) {
    wave.copied_in_bytes += item.link_in_bytes;
    wave.copied_out_bytes += item.link_out_bytes;
  }
  return status;
}

}  // namespace normd
