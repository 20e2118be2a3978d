#include "server/exec/backends.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "server/exec/cuda/cuda_device.h"
#include "server/exec/device/device_backend.h"

namespace normd {
namespace {

// The most that aligning every tensor of a batch may add.
constexpr std::int64_t kArenaSlackBytes = std::int64_t{1} << 20;

DeviceBackendOptions ToDeviceOptions(const BackendOptions& options, std::size_t devices) {
  DeviceBackendOptions device;
  device.lane = LaneOptionsFor(devices);
  device.lanes_per_device = options.device_lanes;
  if (options.device_staging_bytes > 0) {
    SetStagingBytes(options.device_staging_bytes / options.device_lanes, device.lane);
  }
  device.pool_bytes = static_cast<std::size_t>(options.pinned_pool_bytes);
  device.lane.arena_bytes = static_cast<std::size_t>(options.device_batch_bytes + kArenaSlackBytes);
  // Larger requests would occupy the thread that receives them for long; a lane gathers smaller
  // ones together.
  device.min_staged_bytes = std::int64_t{256} << 10;
  device.max_staged_bytes = std::int64_t{4} << 20;
  device.shared_memory = options.device_shared_memory;
  device.inline_bytes = static_cast<std::size_t>(options.max_inline_bytes);
  if (options.max_inline_bytes > 0) {
    device.inline_lanes_per_device = std::max(1u, std::thread::hardware_concurrency());
  }
  return device;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> CreateCudaBackend(const std::vector<int>& ordinals,
                                                           const BackendOptions& options,
                                                           Metrics& metrics, const Clock& clock) {
  const int count = CudaDeviceCount();
  if (count == 0) return absl::FailedPreconditionError("no CUDA driver or no CUDA device is here");
  std::vector<int> chosen = ordinals;
  if (chosen.empty()) {
    for (int i = 0; i < count; ++i) chosen.push_back(i);
  }
  std::vector<std::unique_ptr<Device>> devices;
  for (const int index : chosen) {
    absl::StatusOr<std::unique_ptr<Device>> device = OpenCudaDevice(index);
    if (!device.ok()) return device.status();
    devices.push_back(*std::move(device));
  }
  const DeviceBackendOptions device_options = ToDeviceOptions(options, devices.size());
  auto backend = DeviceBackend::Create(std::move(devices), device_options, metrics, clock);
  if (!backend.ok()) return backend;
  (*backend)->SetPageLocker(CreateCudaPageLocker(chosen));
  if (!options.device_shared_memory) return backend;
  auto shared = CreateCudaSharedMemory(std::move(chosen));
  if (!shared.ok()) return shared.status();
  (*backend)->SetSharedMemory(*std::move(shared));
  return backend;
}

}  // namespace normd
