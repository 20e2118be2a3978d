// The backend over accelerators: several lanes on each device, one pinned pool per device, and each
// model's parameters on all of them.

#ifndef NORMD_SERVER_EXEC_DEVICE_DEVICE_BACKEND_H_
#define NORMD_SERVER_EXEC_DEVICE_DEVICE_BACKEND_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/page_locker.h"
#include "base/shared_device_memory.h"
#include "server/exec/backend.h"
#include "server/exec/device/device.h"
#include "server/exec/device/device_lane.h"
#include "server/exec/device/pinned_pool.h"
#include "server/exec/device/pinned_stager.h"
#include "server/exec/device/routed_lane.h"
#include "server/metrics/metrics.h"

namespace normd {

// The lane options for this many devices on one host. With several, staged bytes must stay in the
// caches, because host memory cannot carry them beside the tensors themselves.
DeviceLaneOptions LaneOptionsFor(std::size_t devices);
// Divides `bytes` of pinned memory into the lane's chunks, each of at least 64 KiB.
void SetStagingBytes(std::int64_t bytes, DeviceLaneOptions& options);

struct DeviceBackendOptions {
  int lanes_per_device = 4;
  // Lanes without a thread of their own, each for one request of up to `inline_bytes`.
  int inline_lanes_per_device = 0;
  std::size_t inline_bytes = 0;
  // See PinnedStager; a maximum of 0: none.
  std::int64_t min_staged_bytes = 0;
  std::int64_t max_staged_bytes = 0;
  std::size_t pool_bytes = std::size_t{512} << 20;  // Pinned, for responses; of each device.
  DeviceLaneOptions lane;
  // Whether requests may name device memory. With several devices each then has as many additional
  // lanes, for tensors that lie on it but are taken by a lane of another.
  bool shared_memory = false;
  int routed_lanes_per_device = 2;
};

// Thread-safe after Create. Destroyed after its lanes and after every model that it prepared.
class DeviceBackend final : public Backend {
 public:
  // Allocates every pool and lane memory now: ResourceExhausted, with the numbers, when it does not
  // fit. `metrics` and `clock` outlive it.
  static absl::StatusOr<std::unique_ptr<DeviceBackend>> Create(
      std::vector<std::unique_ptr<Device>> devices, const DeviceBackendOptions& options,
      Metrics& metrics, const Clock& clock);
  ~DeviceBackend() override;

  absl::StatusOr<std::unique_ptr<BackendState>> Prepare(const Model& model) override;
  // Call each once.
  std::vector<std::unique_ptr<Lane>> MakeLanes() override;
  std::vector<std::unique_ptr<Lane>> MakeInlineLanes() override;
  InputStager* stager() override { return stager_.get(); }
  SharedDeviceMemory* shared_device_memory() override { return shared_memory_.get(); }
  PageLocker* page_locker() override { return page_locker_.get(); }
  // Call all before the lanes run.
  void SetSharedMemory(std::unique_ptr<SharedDeviceMemory> memory) {
    shared_memory_ = std::move(memory);
  }
  void SetPageLocker(std::unique_ptr<PageLocker> locker) { page_locker_ = std::move(locker); }
  std::string Description() const override;

 private:
  DeviceBackend(const DeviceBackendOptions& options, bool routes, Metrics& metrics,
                const Clock& clock)
      : options_(options),
        routed_lanes_(routes ? options.routed_lanes_per_device : 0),
        metrics_(metrics),
        clock_(clock) {}
  absl::Status AddDevice(std::unique_ptr<Device> device);
  // Lanes of the last device, named after `label`, under which the metrics have them.
  absl::Status AddLanes(const std::string& label, int count, DeviceLaneOptions options,
                        std::vector<std::unique_ptr<Lane>>& lanes);
  DeviceLaneOptions InlineLaneOptions() const;
  std::vector<std::unique_ptr<Lane>> Routed(std::vector<std::unique_ptr<Lane>> lanes) const;

  const DeviceBackendOptions options_;
  const int routed_lanes_;  // On each device.
  Metrics& metrics_;
  const Clock& clock_;
  std::unique_ptr<SharedDeviceMemory> shared_memory_;
  std::unique_ptr<PageLocker> page_locker_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::vector<std::unique_ptr<PinnedPool>> pools_;
  std::unique_ptr<PinnedStager> stager_;
  LanePools routes_;  // Empty with one device.
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<std::unique_ptr<Lane>> inline_lanes_;
  std::vector<std::shared_ptr<void>> watches_;  // Destroyed before the objects that they read.
};

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_DEVICE_DEVICE_BACKEND_H_
