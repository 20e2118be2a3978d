#include "tests/server/exec/device/device_lane_backend.h"
#include "tests/support/fake_device.h"

namespace normd {

std::vector<std::string> LanePaths() { return {"Copied", "Mapped"}; }

std::unique_ptr<LaneBackend> MakeLaneBackend(const std::string& path) {
  // Small enough that a tensor of some kilobytes goes through every mechanism.
  DeviceBackendOptions options;
  options.lanes_per_device = 1;
  options.pool_bytes = 4 << 20;
  options.lane.arena_bytes = 2 << 20;
  options.lane.chunk_bytes = path == "Copied" ? 512 : 8 << 10;
  options.lane.chunks = 2;
  options.lane.piece_bytes = 1024;
  options.lane.mapped_bytes = 16 << 10;
  return std::make_unique<DeviceLaneBackend>(std::make_unique<FakeDevice>("fake:0", 32 << 20),
                                             options, path, Closeness::kRounded);
}

}  // namespace normd
