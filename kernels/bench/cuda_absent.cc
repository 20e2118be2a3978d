#include "kernels/bench/device.h"

namespace normd::norm::bench {

Status MakeCudaDevice(const Settings&, std::unique_ptr<Device>*) {
  return Status(StatusCode::kUnsupported, "device: this build has no CUDA kernels");
}

}  // namespace normd::norm::bench
