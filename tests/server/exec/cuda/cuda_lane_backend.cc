#include "server/exec/cuda/cuda_device.h"
#include "tests/server/exec/device/device_lane_backend.h"

namespace normd {

std::vector<std::string> LanePaths() { return {"Copied", "Mapped"}; }

std::unique_ptr<LaneBackend> MakeLaneBackend(const std::string& path) {
  if (CudaDeviceCount() == 0) return nullptr;
  // Small enough that a tensor of a megabyte goes through every mechanism.
  DeviceBackendOptions options;
  options.lanes_per_device = 1;
  options.pool_bytes = 64 << 20;
  options.lane.arena_bytes = 16 << 20;
  options.lane.chunk_bytes = 100'000;
  options.lane.piece_bytes = 300'000;
  return std::make_unique<DeviceLaneBackend>(*OpenCudaDevice(0), options, path,
                                             Closeness::kDeviceKernels);
}

}  // namespace normd
