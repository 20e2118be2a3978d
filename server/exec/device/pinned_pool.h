// Pinned memory for responses, allocated once at start. A response leaves the server from the block
// to which the device wrote it; the block returns when the transport has sent it.

#ifndef NORMD_SERVER_EXEC_DEVICE_PINNED_POOL_H_
#define NORMD_SERVER_EXEC_DEVICE_PINNED_POOL_H_

#include <cstddef>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "base/buffer.h"
#include "server/exec/device/device.h"
#include "server/metrics/metrics.h"

namespace normd {

// Thread-safe; Take and release cost one short lock. Blocks may outlive the pool object, but not
// the device.
class PinnedPool {
 public:
  // Takes `bytes` of pinned memory from `device`.
  static absl::StatusOr<std::unique_ptr<PinnedPool>> Create(Device& device, std::size_t bytes);
  ~PinnedPool();

  // A block aligned for a device, first fit; nullopt when no free run is long enough. Never waits.
  std::optional<Buffer> Take(std::size_t bytes);

  PoolUse use() const;
  // Whether responses should leave the pool before they leave the server, because too much is
  // taken: the rest is for work in progress, which clients that do not read must not stop.
  bool IsScarce() const;

 private:
  class State;
  explicit PinnedPool(std::shared_ptr<State> state);

  // shared: each block of a response keeps the memory.
  std::shared_ptr<State> state_;
};

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_DEVICE_PINNED_POOL_H_
