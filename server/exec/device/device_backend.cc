#include "server/exec/device/device_backend.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/exec/device/device_programs.h"

namespace normd {
namespace {

// A request that runs inline has staging for all of its chunks: one is gathered while the previous
// one is copied, and none is waited for.
constexpr std::size_t kInlineChunkBytes = std::size_t{256} << 10;
constexpr std::size_t kLeastChunkBytes = std::size_t{64} << 10;
constexpr std::size_t kInlineSlackBytes = std::size_t{64} << 10;

}  // namespace

DeviceLaneOptions LaneOptionsFor(std::size_t devices) {
  DeviceLaneOptions options;
  if (devices > 1) {
    options.chunk_bytes = std::size_t{2} << 20;
    options.chunks = 3;
  }
  return options;
}

void SetStagingBytes(std::int64_t bytes, DeviceLaneOptions& options) {
  constexpr std::size_t kPage = 4096;
  const std::size_t chunk = static_cast<std::size_t>(bytes) / options.chunks / kPage * kPage;
  options.chunk_bytes = std::max(chunk, kLeastChunkBytes);
}

DeviceBackend::~DeviceBackend() = default;

absl::StatusOr<std::unique_ptr<DeviceBackend>> DeviceBackend::Create(
    std::vector<std::unique_ptr<Device>> devices, const DeviceBackendOptions& options,
    Metrics& metrics, const Clock& clock) {
  std::unique_ptr<DeviceBackend> backend(new DeviceBackend());
  const bool routes = options.shared_memory && devices.size() > 1;
  backend->lanes_per_device_ =
      options.lanes_per_device + (routes ? options.routed_lanes_per_device : 0);
  for (std::unique_ptr<Device>& device : devices) {
    const std::string name = device->name();
    absl::Status status = backend->AddDevice(std::move(device), options, metrics, clock);
    if (status.ok() && routes) {
      status = backend->AddRoutedLanes(*backend->devices_.back(), options, metrics, clock);
    }
    if (!status.ok()) {
      return absl::Status(status.code(), absl::StrCat(name, ": ", status.message()));
    }
  }
  // Every device can read the memory that the first has pinned.
  if (options.max_staged_bytes > 0) {
    backend->stager_ = std::make_unique<PinnedStager>(
        *backend->pools_.front(), clock, options.min_staged_bytes, options.max_staged_bytes);
  }
  return backend;
}

absl::Status DeviceBackend::AddDevice(std::unique_ptr<Device> owned,
                                      const DeviceBackendOptions& options, Metrics& metrics,
                                      const Clock& clock) {
  devices_.push_back(std::move(owned));
  Device& device = *devices_.back();
  device_list_.push_back(&device);
  metrics.SetDevice(device.name(), device.description());
  absl::StatusOr<std::unique_ptr<PinnedPool>> pool = PinnedPool::Create(device, options.pool_bytes);
  if (!pool.ok()) return pool.status();
  pools_.push_back(*std::move(pool));
  for (int i = 0; i < options.lanes_per_device; ++i) {
    DeviceLaneOptions lane_options = options.lane;
    lane_options.device_index = devices_.size() - 1;
    lane_options.lane_index = i;
    absl::StatusOr<std::unique_ptr<DeviceLane>> lane = DeviceLane::Create(
        device, *pools_.back(), metrics.ForLane(device.name(), absl::StrCat(device.name(), "/", i)),
        clock, lane_options);
    if (!lane.ok()) return lane.status();
    lanes_.push_back(*std::move(lane));
  }
  if (absl::Status status = AddInlineLanes(device, options, metrics, clock); !status.ok()) {
    return status;
  }
  watches_.push_back(metrics.WatchPool(absl::StrCat(device.name(), " pinned"),
                                       [pool = pools_.back().get()] { return pool->use(); }));
  watches_.push_back(metrics.WatchPool(absl::StrCat(device.name(), " memory"), [&device] {
    const absl::StatusOr<DeviceMemoryInfo> info = device.MemoryInfo();
    if (!info.ok()) return PoolUse();
    return PoolUse{info->total_bytes - info->free_bytes, info->free_bytes};
  }));
  return absl::OkStatus();
}

// A separate device in the metrics: their spare time says nothing about the lanes.
absl::Status DeviceBackend::AddInlineLanes(Device& device, const DeviceBackendOptions& options,
                                           Metrics& metrics, const Clock& clock) {
  DeviceLaneOptions lane_options = options.lane;
  lane_options.device_index = devices_.size() - 1;
  lane_options.overlap = false;
  lane_options.arena_bytes = options.inline_bytes + kInlineSlackBytes;
  lane_options.chunk_bytes = kInlineChunkBytes;
  lane_options.chunks = static_cast<int>(options.inline_bytes / kInlineChunkBytes) + 1;
  for (int i = 0; i < options.inline_lanes_per_device; ++i) {
    lane_options.name = absl::StrCat(device.name(), ":inline/", i);
    absl::StatusOr<std::unique_ptr<DeviceLane>> lane = DeviceLane::Create(
        device, *pools_.back(),
        metrics.ForLane(absl::StrCat(device.name(), ":inline"), lane_options.name), clock,
        lane_options);
    if (!lane.ok()) return lane.status();
    inline_lanes_.push_back(*std::move(lane));
  }
  return absl::OkStatus();
}

absl::Status DeviceBackend::AddRoutedLanes(Device& device, const DeviceBackendOptions& options,
                                           Metrics& metrics, const Clock& clock) {
  std::vector<std::unique_ptr<Lane>> lanes;
  for (int i = 0; i < options.routed_lanes_per_device; ++i) {
    DeviceLaneOptions lane_options = options.lane;
    lane_options.device_index = devices_.size() - 1;
    lane_options.lane_index = options.lanes_per_device + i;
    lane_options.name = absl::StrCat(device.name(), ":routed/", i);
    absl::StatusOr<std::unique_ptr<DeviceLane>> lane = DeviceLane::Create(
        device, *pools_.back(),
        metrics.ForLane(absl::StrCat(device.name(), ":routed"), lane_options.name), clock,
        lane_options);
    if (!lane.ok()) return lane.status();
    lanes.push_back(*std::move(lane));
  }
  routes_.emplace(device.ordinal(), std::make_unique<LanePool>(std::move(lanes)));
  return absl::OkStatus();
}

std::vector<std::unique_ptr<Lane>> DeviceBackend::Routed(
    std::vector<std::unique_ptr<Lane>> lanes) const {
  if (routes_.empty()) return lanes;
  for (std::unique_ptr<Lane>& lane : lanes) {
    lane = std::make_unique<RoutedLane>(std::move(lane), routes_);
  }
  return lanes;
}

absl::StatusOr<std::unique_ptr<BackendState>> DeviceBackend::Prepare(const Model& model) {
  return MakeDeviceProgram(model, device_list_, lanes_per_device_);
}

std::vector<std::unique_ptr<Lane>> DeviceBackend::MakeLanes() { return Routed(std::move(lanes_)); }

std::vector<std::unique_ptr<Lane>> DeviceBackend::MakeInlineLanes() {
  return Routed(std::move(inline_lanes_));
}

std::string DeviceBackend::Description() const {
  return absl::StrJoin(devices_, ", ", [](std::string* out, const std::unique_ptr<Device>& device) {
    absl::StrAppend(out, device->name(), " (", device->description(), ")");
  });
}

}  // namespace normd
