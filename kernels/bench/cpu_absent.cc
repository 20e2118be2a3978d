#include "kernels/bench/device.h"

namespace normd::norm::bench {

Status MakeCpuDevice(const Settings&, std::unique_ptr<Device>*) {
  return Status(StatusCode::kUnsupported, "device: this build has no CPU kernels");
}

}  // namespace normd::norm::bench
