#include "server/exec/device/device_programs.h"

#include <variant>

#include "operations/kernel_program.h"
#include "server/exec/device/device_linear_norm.h"
#include "server/exec/device/device_norm.h"

namespace normd {
namespace {

using State = absl::StatusOr<std::unique_ptr<BackendState>>;

struct Maker {
  State operator()(const NormProgram& program) const {
    return DeviceNorm::Upload(program, devices);
  }
  State operator()(const LinearNormProgram& program) const {
    return DeviceLinearNorm::Upload(program, devices, lanes_per_device);
  }
  const absl::Span<Device* const> devices;
  const int lanes_per_device;
};

}  // namespace

absl::StatusOr<std::unique_ptr<BackendState>> MakeDeviceProgram(const Model& model,
                                                                absl::Span<Device* const> devices,
                                                                int lanes_per_device) {
  return std::visit(Maker{devices, lanes_per_device}, model.program());
}

}  // namespace normd
