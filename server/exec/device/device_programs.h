// The device implementations of all kernel contracts.

#ifndef NORMD_SERVER_EXEC_DEVICE_DEVICE_PROGRAMS_H_
#define NORMD_SERVER_EXEC_DEVICE_DEVICE_PROGRAMS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/exec/device/device.h"
#include "server/model/model.h"

namespace normd {

// For the model's program, on each of the devices. Blocks until the parameters are there.
// ResourceExhausted, with the numbers, when one of them has no room.
absl::StatusOr<std::unique_ptr<BackendState>> MakeDeviceProgram(const Model& model,
                                                                absl::Span<Device* const> devices,
                                                                int lanes_per_device);

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_DEVICE_DEVICE_PROGRAMS_H_
