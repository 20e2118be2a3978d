// The calls of the CUDA driver for sharing device memory. The driver is loaded at first use, so
// that the client can be built and run without the toolkit or a driver.

#ifndef NORMD_CLIENT_CUDA_DRIVER_H_
#define NORMD_CLIENT_CUDA_DRIVER_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace normd::client {

using DeviceAddress = std::uint64_t;  // A CUdeviceptr.

// Thread-safe. Every call uses the device's primary context, which it shares with users of the
// runtime, and blocks until it is done.
class CudaDriver {
 public:
  // The process's only instance. Unavailable if the machine has no driver or no device.
  static absl::StatusOr<const CudaDriver*> Load();

  // Unavailable with the driver's error; InvalidArgument for a device that does not exist.
  absl::StatusOr<DeviceAddress> Allocate(int device, std::size_t bytes) const;
  // The 64 bytes of a cudaIpcMemHandle_t.
  absl::StatusOr<std::string> HandleOf(int device, DeviceAddress address) const;
  absl::Status CopyIn(int device, DeviceAddress to, absl::Span<const std::byte> from) const;
  absl::Status CopyOut(int device, absl::Span<std::byte> to, DeviceAddress from) const;
  absl::Status Fill(int device, DeviceAddress at, std::uint8_t value, std::size_t bytes) const;
  void Free(int device, DeviceAddress address) const;

 private:
  struct Calls;
  CudaDriver() = default;
  absl::Status LoadCalls();
  absl::Status Enter(int device) const;

  const Calls* calls_ = nullptr;
};

}  // namespace normd::client

#endif  // NORMD_CLIENT_CUDA_DRIVER_H_
