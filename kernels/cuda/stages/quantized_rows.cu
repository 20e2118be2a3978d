// Rows that are scaled by their squares and quantized, and nothing else: RMSNorm and the 2-norm to
// 8 bits, of rows up to 64 KiB that lie together, one channel for each element or a norm alone.
//
// The largest result of a row is known before what it is normalized by: the row is first multiplied
// with gamma, and the largest of that times the reciprocal root is the largest result. So sums and
// largest are merged at one barrier, and no result is worked out twice.
// Bytes: each element is read once and written once; gamma comes from the L1 cache.
// Occupancy: 64 registers, 32 warps on a multiprocessor, 2 KiB of a row in each.
// Determinism: the order of any_rows.cu.

#include <cuda_runtime.h>

#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/stages/lean_factors.cuh"
#include "kernels/cuda/stages/stage_launch.cuh"

namespace normd::norm::cuda {
namespace {

constexpr int kThreads = 256;  // Of blocks of short rows.
constexpr int kMostThreads = kStageWarps * kLanes;

// What a warp knows of its row.
struct WarpShare {
  float squares;
  std::uint32_t largest;
};

// Merged over a team; every thread gets the result.
__device__ inline WarpShare MergeShares(WarpShare own, const StageTeam<>& team, WarpShare* shares) {
  const auto merge = [](const WarpShare& share, int width) {
    return WarpShare{GroupSum(share.squares, width), LargestOfLanes(share.largest, width)};
  };
  if (team.warps == 0) {
    return team.width == kLanes ? merge(own, kLanes) : merge(own, team.width);
  }
  own = merge(own, kLanes);
  if (team.lane == 0) shares[team.warp] = own;
  team.Sync();
  return merge(team.lane < team.warps ? shares[team.lane] : WarpShare{0, 0}, kLanes);
}

template <typename T>
__global__ void __launch_bounds__(kMostThreads)
    QuantizedRows(const __grid_constant__ StageBatch batch, const int width, const int warps) {
  using Kind = LeanKind<T, kFewVectors, false, false, false, true>;
  constexpr int kCount = kPerVector<T>;
  __shared__ WarpShare shares[kStageWarps];
  const StageTeam<> team(width, warps, kFewVectors);
  const std::uint32_t index =
      warps == 0 ? blockIdx.x * (kThreads / width) + team.number : blockIdx.x;
  const bool exists = index < batch.rows;
  const LeanRun row = FindLeanRow(batch, exists ? index : batch.rows - 1);
  const LeanPlace place = PlaceLeanRow<Kind>(batch, team, row.segment, row.first);
  const StageSegment& segment = batch.segments[row.segment];
  const int vectors = exists ? static_cast<int>(segment.row_bytes) / kVectorBytes : 0;
  const auto present = [&](int i) { return i * team.size() + team.thread < vectors ? kCount : 0; };
  AwaitPreviousKernel();

  Vector x[kFewVectors];
#pragma unroll
  for (int i = 0; i < kFewVectors; ++i) {
    x[i] = make_uint4(0, 0, 0, 0);
    if (present(i) > 0) x[i] = LoadVector(place.x + i * team.size() * kVectorBytes);
  }
  const Moments<float> own = MomentsOfVectors<T, kFewVectors, false>(
      Statistics::kMeanSquare, [&](int i, float(&values)[kCount]) { Unpack<T>(x[i], values); },
      present);
  float scaled[kFewVectors][kCount];
  float largest = 0;
#pragma unroll
  for (int i = 0; i < kFewVectors; ++i) {
    Unpack<T>(x[i], scaled[i]);
    if (batch.gamma.data != nullptr && present(i) > 0) {
      float factor[kCount];
      LoadLeanParam<T>(batch.gamma, place.first_channel + i * team.size() * kCount, factor);
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        scaled[i][j] *= factor[j] + batch.weight_offset.narrow;
      }
    }
#pragma unroll
    for (const float value : scaled[i]) largest = LargerMagnitude(largest, value);
  }
  const WarpShare all = MergeShares({own.m2, Magnitude(largest)}, team, shares);
  Moments<float> moments;
  moments.m2 = all.squares;
  moments.count = static_cast<float>(static_cast<int>(segment.elements));
  const RowScale<float> scale = FinishStatistics(batch.statistics, moments, batch.eps);
  const bool writes = team.thread == 0 && exists;
  float factor = batch.quantization_factor.narrow;
  if (batch.quantization_scale == QuantizationScale::kRow) {
    const QuantizationFactor<float> of_row(batch.quantization,
                                           FromMagnitude(all.largest) * scale.rstd);
    factor = of_row.factor;
    if (writes) segment.scale_out[NumberOf(batch, place)] = of_row.scale;
  }
  if (writes && (segment.mean_out != nullptr || segment.rstd_out != nullptr)) {
    const std::int64_t number = NumberOf(batch, place);
    if (segment.mean_out != nullptr) static_cast<float*>(segment.mean_out)[number] = scale.mean;
    if (segment.rstd_out != nullptr) static_cast<float*>(segment.rstd_out)[number] = scale.rstd;
  }
#pragma unroll
  for (int i = 0; i < kFewVectors; ++i) {
    if (present(i) == 0) continue;
#pragma unroll
    for (float& value : scaled[i]) value *= scale.rstd;
    StoreBytes<kCount>(place.y + i * team.size() * kCount,
                       Quantize(batch.quantization, scaled[i], factor));
  }
}

}  // namespace

cudaError_t LaunchQuantizedRows(const Launch& launch, const StageBatch& batch) {
  const Plan& plan = launch.plan;
  const int width = plan.warps == 0 ? plan.lanes_per_row : kLanes;
  const auto rows = static_cast<unsigned>(plan.warps == 0 ? kThreads / width : 1);
  const auto threads = static_cast<unsigned>(plan.warps == 0 ? kThreads : plan.warps * kLanes);
  const auto enqueue = [&](auto kernel) {
    return LaunchOverlapping(launch.limits, launch.stream, kernel, (batch.rows + rows - 1) / rows,
                             threads, batch, width, plan.warps);
  };
  switch (launch.spec.dtype) {
    case DType::kFloat16: return enqueue(QuantizedRows<Half>);
    case DType::kBFloat16: return enqueue(QuantizedRows<BFloat>);
    default: return enqueue(QuantizedRows<float>);
  }
}

}  // namespace normd::norm::cuda
