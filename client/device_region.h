// Memory of a CUDA device that this process shares with a server on the same machine
// (docs/shared_memory.md).

#ifndef NORMD_CLIENT_DEVICE_REGION_H_
#define NORMD_CLIENT_DEVICE_REGION_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/client.h"
#include "client/cuda_driver.h"
#include "client/region.h"

namespace normd::client {

// The caller's own memory, described by cudaIpcGetMemHandle.
struct DeviceMemory {
  std::string handle;  // The bytes of a cudaIpcMemHandle_t.
  int device = 0;      // As the server numbers devices.
  DeviceAddress address = 0;
  std::size_t bytes = 0;
};

// Memory that the server reads and writes in place, on its device. The server shares it until the
// last holder releases it. The server orders nothing with the client's streams: writes to an input
// must be complete before the request, and outputs are read after the response.
class DeviceRegion final : public Region {
 public:
  // Registers the caller's memory, which outlives the region. `client` makes the calls, for which
  // the server requires the right to make admin calls. The server's errors.
  static absl::StatusOr<std::shared_ptr<DeviceRegion>> Register(std::shared_ptr<Client> client,
                                                                const DeviceMemory& memory);
  // The same with memory of its own, zeroed. CudaDriver's errors too.
  static absl::StatusOr<std::shared_ptr<DeviceRegion>> Allocate(std::shared_ptr<Client> client,
                                                                int device, std::size_t bytes);
  ~DeviceRegion() override;

  DeviceAddress data() const { return memory_.address; }
  int device() const { return memory_.device; }

 private:
  DeviceRegion(std::string name, std::shared_ptr<Client> client, const DeviceMemory& memory);
  absl::Status CopyIn(std::byte* to, absl::Span<const std::byte> from) const override;
  absl::Status CopyOut(absl::Span<std::byte> to, const std::byte* from) const override;

  const std::shared_ptr<Client> client_;  // shared: with the caller.
  const DeviceMemory memory_;
  bool owned_ = false;  // Allocate made the memory.
};

}  // namespace normd::client

#endif  // NORMD_CLIENT_DEVICE_REGION_H_
