#include "tests/server/exec/cuda/cuda_fixture.h"
#include "tests/server/exec/device/device_lane_backend.h"

namespace normd {

std::vector<std::string> LanePaths() { return {"Copied", "Mapped"}; }

std::unique_ptr<LaneBackend> MakeLaneBackend(const std::string& path) {
  if (CudaDeviceCount() == 0) return nullptr;
  return std::make_unique<DeviceLaneBackend>(*OpenCudaDevice(0), SmallLanes(1), path,
                                             Closeness::kDeviceKernels);
}

}  // namespace normd
