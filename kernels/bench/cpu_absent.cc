#include "kernels/bench/device.h"
#include "kernels/bench/linear.h"

namespace normd::norm::bench {

Status MakeCpuDevice(const Settings&, std::unique_ptr<Device>*) {
  return Status(StatusCode::kUnsupported, "device: this build has no CPU kernels");
}

Status MeasureLinear(const Settings&, const LinearCase&, LinearMeasurement*) {
  return Status(StatusCode::kUnsupported, "this build has no CPU kernels");
}

}  // namespace normd::norm::bench
