// Rows that lie together, in registers: residual additions, modulations by sample and channel,
// second tensors and quantized results of rows up to 64 KiB, one channel for each element or a
// norm alone.
//
// Phases: every thread loads its vectors of x and of a residual or second tensor; adds, rounds and
// writes residual_out; the team merges its sums; every thread scales what it holds and stores it.
// Where a row has a scale of its own, the results stay in registers, or are worked out twice where
// they are modulated: for the largest, and to be stored.
// Bytes: each element of each tensor is read once and written once; what belongs to channels comes
// from the L1 cache.
// Occupancy: 64 registers, so that 128 KiB of two tensors are on a multiprocessor, or 48, so that
// 80 KiB are of one. Determinism: the order of any_rows.cu.

#include <cuda_runtime.h>

#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/stages/lean_row.cuh"
#include "kernels/cuda/stages/stage_launch.cuh"

namespace normd::norm::cuda {
namespace {

constexpr int kFewThreads = 256;
constexpr int kManyThreads = kStageWarps * kLanes;

// Blocks of a multiprocessor that the compiler leaves registers for: 64 registers, 48 or 40.
template <typename Kind>
constexpr int WantedBlocks(int threads) {
  return threads == kManyThreads ? 1 : Kind::kAffine ? 5 : 6;
}

template <typename Kind, int kThreads>
__global__ void __launch_bounds__(kThreads, MinBlocks(WantedBlocks<Kind>(kThreads), kThreads))
    LeanRows(const __grid_constant__ StageBatch batch, const int width, const int warps) {
  using T = typename Kind::Type;
  __shared__ Moments<float> partials[kStageWarps];
  __shared__ std::uint32_t largest[kStageWarps];
  const StageTeam team(width, warps);
  const std::uint32_t index =
      warps == 0 ? blockIdx.x * (kFewThreads / width) + threadIdx.x / width : blockIdx.x;
  const bool exists = index < batch.rows;
  const LeanPlace place = FindLeanRow<Kind>(batch, team, exists ? index : batch.rows - 1);
  const int row_bytes = static_cast<int>(batch.segments[place.segment].row_bytes);
  LeanRow<Kind> held(batch, team, place, exists ? row_bytes / kVectorBytes : 0);
  AwaitPreviousKernel();

  held.Load();
  const auto elements = static_cast<float>(row_bytes / static_cast<int>(sizeof(T)));
  const Moments<float> all = MergeTeam(batch.statistics, held.Sum(), elements, team, partials);
  const RowScale<float> scale = FinishStatistics(batch.statistics, all, batch.eps);
  held.RepackAll();
  if (team.thread == 0 && exists) {
    const StageSegment& segment = batch.segments[place.segment];
    auto* const mean_out = static_cast<float*>(segment.mean_out);
    auto* const rstd_out = static_cast<float*>(segment.rstd_out);
    if (mean_out != nullptr) mean_out[NumberOf(batch, place)] = scale.mean;
    if (rstd_out != nullptr) rstd_out[NumberOf(batch, place)] = scale.rstd;
  }
  held.Write(scale, largest);
}

template <typename Kind, int kThreads>
cudaError_t Enqueue(const Launch& launch, const StageBatch& batch) {
  const Plan& plan = launch.plan;
  const int width = plan.warps == 0 ? plan.lanes_per_row : kLanes;
  const auto rows = static_cast<unsigned>(plan.warps == 0 ? kFewThreads / width : 1);
  const auto threads = static_cast<unsigned>(plan.warps == 0 ? kFewThreads : plan.warps * kLanes);
  return LaunchOverlapping(launch.limits, launch.stream, LeanRows<Kind, kThreads>,
                           (batch.rows + rows - 1) / rows, threads, batch, width, plan.warps);
}

template <typename T>
cudaError_t Enqueue(const Launch& launch, const StageBatch& batch) {
  const NormSpec& spec = launch.spec;
  const bool other = spec.combine_output != Combine::kNone;
  const bool absolutes = spec.statistics == Statistics::kSumOfAbsolutes ||
                         spec.statistics == Statistics::kLargestAbsolute;
  if (other) return Enqueue<LeanKind<T, false, true, true, true>, kManyThreads>(launch, batch);
  const bool quantized = spec.quantization != Quantization::kNone;
  if (spec.scale || spec.shift || spec.gate || absolutes) {
    if (quantized) {
      return spec.residual
                 ? Enqueue<LeanKind<T, true, false, true, true>, kManyThreads>(launch, batch)
                 : Enqueue<LeanKind<T, false, false, true, true>, kManyThreads>(launch, batch);
    }
    return spec.residual
               ? Enqueue<LeanKind<T, true, false, true, false>, kManyThreads>(launch, batch)
               : Enqueue<LeanKind<T, false, false, true, false>, kManyThreads>(launch, batch);
  }
  if (spec.residual) {
    return quantized ? Enqueue<LeanKind<T, true, false, false, true>, kManyThreads>(launch, batch)
                     : Enqueue<LeanKind<T, true, false, false, false>, kManyThreads>(launch, batch);
  }
  if (quantized) {
    return Enqueue<LeanKind<T, false, false, false, true>, kManyThreads>(launch, batch);
  }
  using Plain = LeanKind<T, false, false, false, false>;
  using Bare = LeanKind<T, false, false, false, false, false>;
  if (!batch.affine && launch.plan.warps * kLanes <= kFewThreads) {
    return Enqueue<Bare, kFewThreads>(launch, batch);
  }
  return launch.plan.warps * kLanes <= kFewThreads ? Enqueue<Plain, kFewThreads>(launch, batch)
                                                   : Enqueue<Plain, kManyThreads>(launch, batch);
}

bool IsAligned(const void* data, std::int64_t bytes) {
  return (reinterpret_cast<std::uintptr_t>(data) | static_cast<std::uintptr_t>(bytes)) %
             kVectorBytes ==
         0;
}

// Whether 16-byte loads can fetch gamma or beta from each row's first channel on.
bool IsLeanParam(const StageBatch& batch, const ParamVector& param) {
  if (param.data == nullptr) return true;
  if (param.dtype != batch.dtype && param.dtype != DType::kFloat32) return false;
  const std::int64_t group_bytes =
      batch.channels_per_group * static_cast<std::int64_t>(SizeOf(param.dtype));
  return IsAligned(param.data, group_bytes);
}

}  // namespace

bool TakesLeanRows(const Launch& launch, const StageBatch& batch) {
  const NormSpec& spec = launch.spec;
  if (!batch.aligned || spec.dtype == DType::kFloat64 || spec.statistics == Statistics::kGiven ||
      spec.style != Style::kNone || spec.activation != Activation::kNone ||
      spec.combine_input != Combine::kNone || batch.input_bias.data != nullptr ||
      (spec.residual && spec.combine_output != Combine::kNone) ||
      !IsLeanParam(batch, batch.gamma) || !IsLeanParam(batch, batch.beta)) {
    return false;
  }
  const auto element = static_cast<std::int64_t>(SizeOf(spec.dtype));
  const std::int64_t most = std::int64_t{kManyThreads} * kStageVectors * kVectorBytes / element;
  for (int i = 0; i < batch.segment_count; ++i) {
    const StageSegment& segment = batch.segments[i];
    const bool of_channels = batch.affine || batch.gate;
    if (segment.elements > most || (of_channels && segment.channel_run != 1)) return false;
    for (const void* data : {segment.gate, segment.scale, segment.shift}) {
      if (data != nullptr && !IsAligned(data, batch.channels_per_group * element)) return false;
    }
  }
  return true;
}

cudaError_t LaunchLeanRows(const Launch& launch, const StageBatch& batch) {
  switch (launch.spec.dtype) {
    case DType::kFloat16: return Enqueue<Half>(launch, batch);
    case DType::kBFloat16: return Enqueue<BFloat>(launch, batch);
    default: return Enqueue<float>(launch, batch);
  }
}

}  // namespace normd::norm::cuda
