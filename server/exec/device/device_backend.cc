#include "server/exec/device/device_backend.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/exec/device/device_linear_norm.h"
#include "server/exec/device/device_norm.h"

namespace normd {
namespace {

// A request that runs inline has staging for all of its chunks: one is gathered while the previous
// one is copied, and none is waited for.
constexpr std::size_t kInlineChunkBytes = std::size_t{256} << 10;
constexpr std::size_t kLeastChunkBytes = std::size_t{64} << 10;
constexpr std::size_t kInlineSlackBytes = std::size_t{64} << 10;

using State = absl::StatusOr<std::unique_ptr<BackendState>>;

// The implementation of each kernel contract.
struct ProgramMaker {
  State operator()(const NormProgram& program) const {
    return DeviceNorm::Upload(program, devices);
  }
  State operator()(const LinearNormProgram& program) const {
    return DeviceLinearNorm::Upload(program, devices, lanes_per_device);
  }
  const absl::Span<const std::unique_ptr<Device>> devices;
  const int lanes_per_device;
};

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
  const bool routes = options.shared_memory && devices.size() > 1;
  std::unique_ptr<DeviceBackend> backend(new DeviceBackend(options, routes, metrics, clock));
  for (std::unique_ptr<Device>& device : devices) {
    const std::string name = device->name();
    absl::Status status = backend->AddDevice(std::move(device));
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

// Inline and routed lanes are devices of their own in the metrics: their spare time says nothing
// about the others.
absl::Status DeviceBackend::AddDevice(std::unique_ptr<Device> owned) {
  devices_.push_back(std::move(owned));
  Device& device = *devices_.back();
  const std::string& name = device.name();
  metrics_.SetDevice(name, device.description());
  absl::StatusOr<std::unique_ptr<PinnedPool>> pool =
      PinnedPool::Create(device, options_.pool_bytes);
  if (!pool.ok()) return pool.status();
  pools_.push_back(*std::move(pool));
  absl::Status status = AddLanes(name, options_.lanes_per_device, options_.lane, lanes_);
  if (status.ok()) {
    status = AddLanes(absl::StrCat(name, ":inline"), options_.inline_lanes_per_device,
                      InlineLaneOptions(), inline_lanes_);
  }
  if (status.ok() && routed_lanes_ > 0) {
    DeviceLaneOptions options = options_.lane;
    options.lane_index = options_.lanes_per_device;
    std::vector<std::unique_ptr<Lane>> lanes;
    status = AddLanes(absl::StrCat(name, ":routed"), routed_lanes_, options, lanes);
    routes_.emplace(device.ordinal(), std::make_unique<LanePool>(std::move(lanes)));
  }
  if (!status.ok()) return status;
  watches_.push_back(metrics_.WatchPool(absl::StrCat(name, " pinned"),
                                        [pool = pools_.back().get()] { return pool->use(); }));
  watches_.push_back(metrics_.WatchPool(absl::StrCat(name, " memory"), [&device] {
    const absl::StatusOr<DeviceMemoryInfo> info = device.MemoryInfo();
    if (!info.ok()) return PoolUse();
    return PoolUse{info->total_bytes - info->free_bytes, info->free_bytes};
  }));
  return absl::OkStatus();
}

absl::Status DeviceBackend::AddLanes(const std::string& label, int count, DeviceLaneOptions options,
                                     std::vector<std::unique_ptr<Lane>>& lanes) {
  options.device_index = devices_.size() - 1;
  for (int i = 0; i < count; ++i, ++options.lane_index) {
    options.name = absl::StrCat(label, "/", i);
    absl::StatusOr<std::unique_ptr<DeviceLane>> lane = DeviceLane::Create(
        *devices_.back(), *pools_.back(), metrics_.ForLane(label, options.name), clock_, options);
    if (!lane.ok()) return lane.status();
    lanes.push_back(*std::move(lane));
  }
  return absl::OkStatus();
}

DeviceLaneOptions DeviceBackend::InlineLaneOptions() const {
  DeviceLaneOptions options = options_.lane;
  options.overlap = false;
  options.arena_bytes = options_.inline_bytes + kInlineSlackBytes;
  options.chunk_bytes = kInlineChunkBytes;
  options.chunks = static_cast<int>(options_.inline_bytes / kInlineChunkBytes) + 1;
  return options;
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
  return std::visit(ProgramMaker{devices_, options_.lanes_per_device + routed_lanes_},
                    model.program());
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
