#include "kernels/bench/device.h"

namespace norm::bench {

Status MakeCudaDevice(const Settings&, std::unique_ptr<Device>*) {
  return Status(StatusCode::kUnsupported, "device: this build has no CUDA kernels");
}

}  // namespace norm::bench
