#include "kernels/cuda/normalize.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/linear/linear_launch.h"
#include "kernels/cuda/plan.h"
#include "kernels/cuda/stages/stages.h"
#include "kernels/mixed_runs.h"
#include "kernels/sample_range.h"

namespace normd::norm::cuda {
namespace {

constexpr std::size_t kScratchAlignment = 256;

constexpr std::int64_t kMaxRows = std::numeric_limits<std::int32_t>::max();

// The segments of a batch that share a launch.
struct PlannedSegments {
  Lowering lowering;
  Plan plan;
  const NormParams* params;  // Null: the batch's.
  NormSpec spec;             // As the kernels see it, like the segments.
  std::vector<Segment> segments;
  Segment whole;  // kSampleAffine: the only segment, unchanged.
  // The same for all segments.
  SampleGaps gaps;
  std::int64_t gap_rows;
};

// Segments whose statistics a kernel of their own computes, by one plan.
struct PlannedStatistics {
  Plan plan;
  NormSpec spec;
  std::vector<Segment> segments;
  SampleGaps gaps;
};

struct PlannedBatch {
  std::vector<PlannedSegments> parts;
  std::vector<PlannedStatistics> statistics;
};

const NormParams& ParamsOf(const Segment& segment, const NormParams& params) {
  return segment.params != nullptr ? *segment.params : params;
}

// Whether two segments of one plan can share a launch.
bool ShareRows(const PlannedSegments& a, const PlannedSegments& b) {
  if (a.gaps != b.gaps || a.gap_rows != b.gap_rows) return false;
  if (a.spec.layout != b.spec.layout || a.spec.channel_runs != b.spec.channel_runs ||
      a.segments.front().spatial_runs != b.segments.front().spatial_runs) {
    return false;
  }
  if (a.lowering != Lowering::kStages) return true;
  const StageRows first = RowsOfStages(a.spec, a.segments.front().spatial);
  const StageRows second = RowsOfStages(b.spec, b.segments.front().spatial);
  return first.groups == second.groups && (first.channel_run == 1) == (second.channel_run == 1);
}

// Appends to segments that share a launch, or begins a new list.
void AddSegment(PlannedSegments next, std::vector<PlannedSegments>* planned) {
  const auto same =
      std::find_if(planned->begin(), planned->end(), [&](const PlannedSegments& other) {
        return other.lowering == next.lowering && other.lowering != Lowering::kSampleAffine &&
               other.plan == next.plan && other.params == next.params && ShareRows(other, next);
      });
  if (same == planned->end()) {
    planned->push_back(std::move(next));
  } else {
    same->segments.push_back(next.segments.front());
  }
}

// Whether the kernel that computes y also writes mean_out and rstd_out. Those of whole rows number
// them as they lie in memory, where the groups of a position are adjacent; the contract counts all
// positions of a group first.
bool WritesStatistics(const NormSpec& spec, const Plan& plan) {
  switch (plan.strategy) {
    case Strategy::kStages: return true;
    case Strategy::kWarp:
    case Strategy::kBlock:
    case Strategy::kCluster:
    case Strategy::kGrid:
    case Strategy::kSplit: return spec.rows == Rows::kGroup || spec.groups == 1;
    default: return false;
  }
}

// Moves a segment's statistics from the kernels that compute y to one of their own.
void MoveStatistics(const NormSpec& spec, const DeviceLimits& limits, Segment* segment,
                    std::vector<PlannedStatistics>* planned) {
  if (segment->mean_out == nullptr && segment->rstd_out == nullptr) return;
  NormSpec own;
  own.statistics = spec.statistics;
  own.dtype = spec.dtype;
  own.layout = spec.layout;
  own.channels = spec.channels;
  own.groups = spec.groups;
  own.eps = spec.eps;
  own.rows = spec.rows;
  Segment wanted;
  wanted.x = segment->x;
  wanted.samples = segment->samples;
  wanted.spatial = segment->spatial;
  wanted.x_pitch = segment->x_pitch;
  std::swap(wanted.mean_out, segment->mean_out);
  std::swap(wanted.rstd_out, segment->rstd_out);
  Plan plan;
  PlanStages(own, segment->spatial, limits, &plan);
  const SampleGaps gaps = GapsOf(own, wanted);
  auto same = std::find_if(planned->begin(), planned->end(), [&](const PlannedStatistics& other) {
    return other.plan == plan && other.spec.layout == own.layout && other.gaps == gaps;
  });
  if (same == planned->end()) same = planned->insert(same, {plan, own, {}, gaps});
  same->segments.push_back(wanted);
}

Status RefuseRows(const char* field, std::int64_t rows) {
  return Status(StatusCode::kUnsupported,
                std::string(field) + ": " + std::to_string(rows) + ", wanted fewer than 2^31");
}

// Selects the layout in which a segment is computed.
void TakeLayout(NormSpec* spec, Segment* segment) {
  if (spec->layout == Layout::kMixedRuns) ShortenRuns(spec, segment);
}

// Whether the kernels of a plan find rows between gaps, or their launches are cut at gaps.
bool TakesGaps(Lowering lowering, const Plan& plan, std::int64_t rows_of_sample) {
  if (lowering == Lowering::kStages) return true;
  return lowering != Lowering::kSampleAffine && rows_of_sample <= kMaxRows &&
         (plan.strategy == Strategy::kWarp || plan.strategy == Strategy::kBlock);
}

// The most samples of a segment that a launch takes in one piece.
std::int64_t SamplesOfPiece(const NormSpec& spec, const Segment& segment, Lowering lowering,
                            const Plan& plan) {
  // Factors turn all samples' channels into those of one sample, whose number is limited.
  const std::int64_t most =
      lowering == Lowering::kSampleAffine ? kMaxRows / spec.channels : segment.samples;
  if (!GapsOf(spec, segment).any()) return most;
  const std::int64_t rows = RowsOfSample(spec, segment.spatial);
  return TakesGaps(lowering, plan, rows)
             ? std::min(most, std::max<std::int64_t>(kMaxRows / rows, 1))
             : 1;
}

Status PlanSegments(const NormSpec& batch_spec, const NormParams& params, const Segment* segments,
                    std::size_t count, const DeviceLimits& limits, Strategy forced,
                    PlannedBatch* planned) {
  for (std::size_t i = 0; i < count; ++i) {
    if (segments[i].samples == 0 || segments[i].spatial == 0) continue;
    NormSpec spec = batch_spec;
    Segment rest = segments[i];
    TakeLayout(&spec, &rest);
    const PresentParams present = PresentParams::Of(ParamsOf(segments[i], params), spec.dtype);
    const Lowering lowering = LowerSegment(spec, rest.spatial, present);
    const std::int64_t rows = RowsOfStages(spec, rest.spatial).rows_of_sample();
    if ((lowering == Lowering::kStages || lowering == Lowering::kModulated) && rows > kMaxRows) {
      return RefuseRows("spatial: rows of a sample", rows);
    }
    if ((lowering == Lowering::kSampleAffine || spec.layout == Layout::kMixedRuns) &&
        spec.channels > kMaxRows) {
      return RefuseRows("channels", spec.channels);
    }
    const LoweredRows one = LowerRows(spec, lowering, 1, rest.spatial);
    Plan plan;
    if (Status status =
            MakeLoweredPlan(one.spec, lowering, one.spatial, present, limits, forced, &plan);
        !status.ok()) {
      return status;
    }
    const std::int64_t most = SamplesOfPiece(spec, rest, lowering, plan);
    while (rest.samples > 0) {
      Segment piece = rest;
      piece.samples = std::min(rest.samples, most);
      const LoweredRows lowered = LowerRows(spec, lowering, piece.samples, piece.spatial);
      const SampleGaps gaps = GapsOf(spec, piece);
      // A pitch must not outlive its gaps: a lowered segment counts its samples anew.
      if (!gaps.any()) piece.x_pitch = piece.y_pitch = 0;
      PlannedSegments next = {lowering, plan, segments[i].params,   lowered.spec, {},
                              piece,    gaps, gaps.any() ? rows : 1};
      if (!WritesStatistics(spec, next.plan)) {
        MoveStatistics(spec, limits, &piece, &planned->statistics);
      }
      next.segments.push_back(piece);
      next.segments.front().samples = lowered.samples;
      next.segments.front().spatial = lowered.spatial;
      AddSegment(std::move(next), &planned->parts);
      if (piece.samples == rest.samples) break;
      rest = SamplesOf(spec, rest, piece.samples, rest.samples - piece.samples);
    }
  }
  return Status();
}

constexpr std::size_t RoundUp(std::size_t bytes) {
  return (bytes + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
}

std::size_t FamilyScratchBytes(const DeviceLimits& limits, const PlannedSegments& planned) {
  const Segment* const segments = planned.segments.data();
  switch (planned.plan.strategy) {
    case Strategy::kSplit:
      return SplitScratchBytes(planned.spec, segments, planned.segments.size());
    case Strategy::kChannelsLast:
      return ChannelsLastScratchBytes(planned.spec, limits, planned.plan, segments,
                                      planned.segments.size());
    default: return 0;
  }
}

std::size_t ScratchBytes(const NormSpec& spec, const DeviceLimits& limits,
                         const PlannedSegments& planned) {
  const std::size_t family = FamilyScratchBytes(limits, planned);
  if (planned.lowering != Lowering::kSampleAffine) return family;
  return RoundUp(family) + FactorsBytes(spec, planned.whole.samples);
}

// Plans run one after another on one stream, so they use the same scratch.
std::size_t WorkspaceBytes(const NormSpec& spec, const DeviceLimits& limits,
                           const PlannedBatch& planned) {
  std::size_t scratch = 0;
  for (const PlannedSegments& part : planned.parts) {
    scratch = std::max(scratch, ScratchBytes(spec, limits, part));
  }
  return planned.parts.empty() ? 0 : kExchangeBytes + scratch;
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
    case Strategy::kStages: return LaunchStages(launch);
    case Strategy::kAuto: break;
  }
  return Status(StatusCode::kUnsupported, "strategy: the plan names none");
}

// Statistics come before y, which may be written over x.
Status EnqueueStatistics(const PlannedStatistics& part, const DeviceLimits& limits,
                         cudaStream_t stream) {
  const NormParams none;
  const Launch launch = {
      part.spec, none,    limits,  part.plan, part.segments.data(), part.segments.size(),
      stream,    nullptr, nullptr, part.gaps};
  return LaunchStatistics(launch);
}

// A part of a batch: its factors, if it has any, and its rows.
Status EnqueuePart(const NormSpec& spec, const NormParams& params, const DeviceLimits& limits,
                   const PlannedSegments& part, const LaunchOptions& options) {
  char* const workspace = static_cast<char*>(options.workspace);
  const NormParams& own = part.params != nullptr ? *part.params : params;
  NormParams lowered = own;
  if (part.lowering == Lowering::kSampleAffine) {
    const std::size_t bytes = FactorsBytes(spec, part.whole.samples);
    char* const factors = workspace + kExchangeBytes + RoundUp(FamilyScratchBytes(limits, part));
    const SampleAffineLaunch launch = {spec, own, limits, part.whole, options.stream, factors};
    if (Status status = LaunchSampleAffine(launch); !status.ok()) return status;
    const DType dtype = spec.dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
    lowered.gamma = {factors, dtype};
    lowered.beta = {factors + bytes / 2, dtype};
  }
  const Launch launch = {part.spec,
                         lowered,
                         limits,
                         part.plan,
                         part.segments.data(),
                         part.segments.size(),
                         options.stream,
                         workspace,
                         workspace == nullptr ? nullptr : workspace + kExchangeBytes,
                         part.gaps,
                         part.gap_rows};
  return Enqueue(launch);
}

// Whether a family's blocks exchange partials through the workspace's head.
bool Exchanges(const PlannedSegments& part) {
  switch (part.plan.strategy) {
    case Strategy::kWarp:
    case Strategy::kBlock:
    case Strategy::kElementwise:
    case Strategy::kStages: return false;
    default: return true;
  }
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
  limits->l2_bytes = static_cast<std::size_t>(attribute(cudaDevAttrL2CacheSize));
  limits->cooperative_launch = attribute(cudaDevAttrCooperativeLaunch) != 0;
  const bool clusters = attribute(cudaDevAttrClusterLaunch) != 0;
  if (error == cudaSuccess && limits->compute_capability >= 80) error = PrepareGridRows(*limits);
  if (error == cudaSuccess && limits->compute_capability >= 80) error = PrepareStages(*limits);
  if (error == cudaSuccess && clusters) error = CountResidentClusters(limits);
  if (error == cudaSuccess && clusters) error = PrepareClusterRows(*limits);
  if (error == cudaSuccess && limits->compute_capability == 90) error = PrepareTensorProduct();
  const cudaError_t restored = cudaSetDevice(before);
  return ToStatus(error != cudaSuccess ? error : restored, "query of the device's limits");
}

std::size_t WorkspaceBytes(const NormSpec& spec, const Segment* segments, std::size_t count,
                           const DeviceLimits& limits, Strategy forced) {
  // Pointers are not read, so parameters count as the batch's, which have no input bias: with one a
  // segment needs less. With gamma and beta, the more the wider, rows may need more.
  std::vector<Segment> counts(segments, segments + count);
  for (Segment& segment : counts) segment.params = nullptr;
  NormParams widest;
  widest.gamma = widest.beta = {&widest, DType::kFloat64};
  std::size_t bytes = 0;
  for (const NormParams& params : {NormParams(), widest}) {
    PlannedBatch planned;
    if (!PlanSegments(spec, params, counts.data(), count, limits, forced, &planned).ok()) continue;
    bytes = std::max(bytes, WorkspaceBytes(spec, limits, planned));
  }
  return bytes;
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
  PlannedBatch planned;
  if (Status status = PlanSegments(spec, params, segments, count, limits, options.forced, &planned);
      !status.ok()) {
    return status;
  }
  if (Status status = CheckWorkspace(options, WorkspaceBytes(spec, limits, planned));
      !status.ok()) {
    return status;
  }
  if (options.new_workspace && std::any_of(planned.parts.begin(), planned.parts.end(), Exchanges)) {
    Status status = InitWorkspace(options.workspace, options.workspace_bytes, options.stream);
    if (!status.ok()) return status;
  }
  for (const PlannedStatistics& part : planned.statistics) {
    if (Status status = EnqueueStatistics(part, limits, options.stream); !status.ok()) {
      return status;
    }
  }
  for (const PlannedSegments& part : planned.parts) {
    if (Status status = EnqueuePart(spec, params, limits, part, options); !status.ok()) {
      return status;
    }
  }
  return Status();
}

}  // namespace normd::norm::cuda
