#include "kernels/cuda/normalize.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/linear/linear_launch.h"
#include "kernels/cuda/plan.h"

namespace normd::norm::cuda {
namespace {

constexpr std::size_t kScratchAlignment = 256;

// The segments of a batch that share a plan and their parameters.
struct PlannedSegments {
  Plan plan;
  const NormParams* params;  // Null: the batch's.
  std::vector<Segment> segments;
};

Status PlanSegments(const NormSpec& spec, const Segment* segments, std::size_t count,
                    const DeviceLimits& limits, Strategy forced,
                    std::vector<PlannedSegments>* planned) {
  for (std::size_t i = 0; i < count; ++i) {
    if (segments[i].samples == 0 || segments[i].spatial == 0) continue;
    Plan plan;
    if (Status status = MakePlan(spec, segments[i].spatial, limits, forced, &plan); !status.ok()) {
      return status;
    }
    const NormParams* const params = segments[i].params;
    auto same = std::find_if(planned->begin(), planned->end(), [&](const PlannedSegments& other) {
      return other.plan == plan && other.params == params;
    });
    if (same == planned->end()) same = planned->insert(same, PlannedSegments{plan, params, {}});
    same->segments.push_back(segments[i]);
  }
  return Status();
}

std::size_t ScratchBytes(const NormSpec& spec, const DeviceLimits& limits,
                         const PlannedSegments& planned) {
  const Segment* const segments = planned.segments.data();
  switch (planned.plan.strategy) {
    case Strategy::kSplit: return SplitScratchBytes(spec, segments, planned.segments.size());
    case Strategy::kChannelsLast:
      return ChannelsLastScratchBytes(spec, limits, planned.plan, segments,
                                      planned.segments.size());
    default: return 0;
  }
}

// Plans that run one after the other on one stream use the same scratch in turn.
std::size_t WorkspaceBytes(const NormSpec& spec, const DeviceLimits& limits,
                           const std::vector<PlannedSegments>& planned) {
  std::size_t scratch = 0;
  for (const PlannedSegments& part : planned) {
    scratch = std::max(scratch, ScratchBytes(spec, limits, part));
  }
  return planned.empty() ? 0 : kExchangeBytes + scratch;
}

Status Enqueue(const Launch& launch) {
  switch (launch.plan.strategy) {
    case Strategy::kWarp: return LaunchWarpRows(launch);
    case Strategy::kBlock: return LaunchBlockRows(launch);
    case Strategy::kCluster: return LaunchClusterRows(launch);
    case Strategy::kGrid: return LaunchGridRows(launch);
    case Strategy::kSplit: return LaunchSplitRows(launch);
    case Strategy::kChannelsLast: return LaunchChannelsLast(launch);
    case Strategy::kElementwise: return LaunchElementwise(launch);
    case Strategy::kAuto: break;
  }
  return Status(StatusCode::kUnsupported, "strategy: the plan names none");
}

Status CheckWorkspace(const LaunchOptions& options, std::size_t wanted) {
  if (wanted == 0) return Status();
  if (options.workspace == nullptr || options.workspace_bytes < wanted) {
    return Status(
        StatusCode::kOutOfMemory,
        "workspace: " + std::to_string(options.workspace == nullptr ? 0 : options.workspace_bytes) +
            " bytes, wanted " + std::to_string(wanted));
  }
  if (reinterpret_cast<std::uintptr_t>(options.workspace) % kScratchAlignment != 0) {
    return InvalidArgument("workspace: not aligned to 256 bytes");
  }
  return Status();
}

}  // namespace

static_assert(kExchangeBytes <= kWorkspaceBase);

Status QueryDeviceLimits(int device, DeviceLimits* limits) {
  *limits = DeviceLimits();
  int before = 0;
  if (Status status = ToStatus(cudaGetDevice(&before), "cudaGetDevice"); !status.ok()) {
    return status;
  }
  if (Status status = ToStatus(cudaSetDevice(device), "cudaSetDevice"); !status.ok()) return status;
  cudaError_t error = cudaSuccess;
  const auto attribute = [&](cudaDeviceAttr name) {
    int value = 0;
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&value, name, device);
    return value;
  };
  limits->compute_capability = 10 * attribute(cudaDevAttrComputeCapabilityMajor) +
                               attribute(cudaDevAttrComputeCapabilityMinor);
  limits->multiprocessors = attribute(cudaDevAttrMultiProcessorCount);
  limits->shared_bytes_per_block =
      static_cast<std::size_t>(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin));
  limits->cooperative_launch = attribute(cudaDevAttrCooperativeLaunch) != 0;
  const bool clusters = attribute(cudaDevAttrClusterLaunch) != 0;
  if (error == cudaSuccess && limits->compute_capability >= 80) error = PrepareGridRows(*limits);
  if (error == cudaSuccess && clusters) error = CountResidentClusters(limits);
  if (error == cudaSuccess && clusters) error = PrepareClusterRows(*limits);
  if (error == cudaSuccess && limits->compute_capability == 90) error = PrepareTensorProduct();
  const cudaError_t restored = cudaSetDevice(before);
  return ToStatus(error != cudaSuccess ? error : restored, "query of the device's limits");
}

std::size_t WorkspaceBytes(const NormSpec& spec, const Segment* segments, std::size_t count,
                           const DeviceLimits& limits, Strategy forced) {
  std::vector<PlannedSegments> planned;
  if (!PlanSegments(spec, segments, count, limits, forced, &planned).ok()) return 0;
  return WorkspaceBytes(spec, limits, planned);
}

Status InitWorkspace(void* workspace, std::size_t bytes, cudaStream_t stream) {
  if (workspace == nullptr) return Status();
  return ToStatus(cudaMemsetAsync(workspace, 0, std::min(bytes, kExchangeBytes), stream),
                  "InitWorkspace");
}

Status Normalize(const NormSpec& spec, const NormParams& params, const Segment* segments,
                 std::size_t count, const DeviceLimits& limits, const LaunchOptions& options) {
  if (Status status = ValidateSpec(spec, params); !status.ok()) return status;
  if (Status status = ValidateSegments(spec, segments, count); !status.ok()) return status;
  if (spec.groups > std::numeric_limits<std::int32_t>::max()) {
    return Status(StatusCode::kUnsupported,
                  "groups: " + std::to_string(spec.groups) + ", wanted fewer than 2^31");
  }
  if (spec.residual) {
    return Status(StatusCode::kUnsupported, "residual: set, CUDA devices do not compute it");
  }
  std::vector<PlannedSegments> planned;
  if (Status status = PlanSegments(spec, segments, count, limits, options.forced, &planned);
      !status.ok()) {
    return status;
  }
  if (Status status = CheckWorkspace(options, WorkspaceBytes(spec, limits, planned));
      !status.ok()) {
    return status;
  }
  char* const workspace = static_cast<char*>(options.workspace);
  for (const PlannedSegments& part : planned) {
    const Launch launch = {spec,
                           part.params != nullptr ? *part.params : params,
                           limits,
                           part.plan,
                           part.segments.data(),
                           part.segments.size(),
                           options.stream,
                           workspace,
                           workspace == nullptr ? nullptr : workspace + kExchangeBytes};
    if (Status status = Enqueue(launch); !status.ok()) return status;
  }
  return Status();
}

}  // namespace normd::norm::cuda
