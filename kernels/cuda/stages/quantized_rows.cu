// Rows that are scaled by their squares and quantized, without other stages: RMSNorm and the 2-norm
// to 8 bits, of contiguous rows up to 64 KiB, with one channel per element or a norm alone.
//
// The largest result of a row or a block of it is known before the row's statistics: the row is
// first multiplied with gamma, and the largest product times the reciprocal root is the largest
// result. So sums and largest are merged at one barrier, and no result is computed twice.
// Bytes: each element is read once and written once; gamma comes from the L1 cache.
// Occupancy: 64 registers, 32 warps on a multiprocessor, 2 KiB of a row in each.
// Determinism: the order of general_rows.cu.

#include <cuda_runtime.h>

#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/stages/register_factors.cuh"
#include "kernels/cuda/stages/stage_launch.cuh"

namespace normd::norm::cuda {
namespace {

constexpr int kMostThreads = kStageWarps * kLanes;

// A warp's share of its row.
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

// A thread's part of gamma, loaded together with the row. P: its type, or void if there is none.
template <typename T, typename P>
struct HeldGamma {
  static constexpr int kCount = kPerVector<T>;
  static constexpr int kParts = kCount / kPerVector<P>;
  Vector vectors[kFewVectors][kParts];

  __device__ void Load(const void* gamma, int i, std::int64_t first, bool exists) {
#pragma unroll
    for (int k = 0; k < kParts; ++k) {
      vectors[i][k] = make_uint4(0, 0, 0, 0);
      const P* const address = static_cast<const P*>(gamma) + first + k * kPerVector<P>;
      if (exists) vectors[i][k] = __ldg(reinterpret_cast<const uint4*>(address));
    }
  }
  __device__ void Scale(int i, float offset, float (&values)[kCount]) const {
#pragma unroll
    for (int k = 0; k < kParts; ++k) {
      float factor[kPerVector<P>];
      Unpack<P>(vectors[i][k], factor);
#pragma unroll
      for (int j = 0; j < kPerVector<P>; ++j) values[k * kPerVector<P> + j] *= factor[j] + offset;
    }
  }
};
template <typename T>
struct HeldGamma<T, void> {
  __device__ void Load(const void*, int, std::int64_t, bool) {}
  __device__ void Scale(int, float, float (&)[kPerVector<T>]) const {}
};

// Vectors that do not exist are zeros, which change neither sums nor the largest. kScale: kBlock,
// or kRow for one scale of a row, its own or given.
template <typename T, typename P, QuantizationScale kScale>
__global__ void __launch_bounds__(kMostThreads)
    QuantizedRows(const __grid_constant__ StageBatch batch, const int width, const int warps) {
  using Kind = RegisterKind<T, kFewVectors, RegisterInput::kAlone, false, true>;
  constexpr int kCount = kPerVector<T>;
  __shared__ WarpShare shares[kStageWarps];
  const StageTeam<> team(width, warps, kFewVectors);
  const std::uint32_t index =
      warps == 0 ? blockIdx.x * (kTeamThreads / width) + team.number : blockIdx.x;
  const bool exists = index < batch.rows;
  const RegisterRun row = FindRegisterRow(batch, exists ? index : batch.rows - 1);
  const RegisterPlace place = PlaceRegisterRow<Kind>(batch, team, row.segment, row.first);
  const StageSegment& segment = batch.segments[row.segment];
  const int vectors = exists ? static_cast<int>(segment.row_bytes) / kVectorBytes : 0;
  const auto vector_of = [&](int i) { return i * team.size() + team.thread; };
  AwaitPreviousKernel();

  Vector x[kFewVectors];
  HeldGamma<T, P> gamma;
#pragma unroll
  for (int i = 0; i < kFewVectors; ++i) {
    const bool here = vector_of(i) < vectors;
    x[i] = make_uint4(0, 0, 0, 0);
    if (here) x[i] = LoadVector(place.x + i * team.size() * kVectorBytes);
    gamma.Load(batch.gamma.data, i, place.first_channel + i * team.size() * kCount, here);
  }
  float scaled[kFewVectors][kCount];
  float squares[2] = {0, 0};
  float largest = 0;
#pragma unroll
  for (int i = 0; i < kFewVectors; ++i) {
    Unpack<T>(x[i], scaled[i]);
    AddUncentered<T, false>(Statistics::kMeanSquare, scaled[i], kCount, squares, nullptr);
    gamma.Scale(i, batch.weight_offset.narrow, scaled[i]);
#pragma unroll
    for (const float value : scaled[i]) largest = LargerMagnitude(largest, value);
  }
  const WarpShare all = MergeShares({squares[0] + squares[1], Magnitude(largest)}, team, shares);
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
    if constexpr (kScale == QuantizationScale::kBlock) {  // The vectors of adjacent lanes.
      constexpr int kBlockVectors = static_cast<int>(kQuantizationBlock) / kCount;
      float own_largest = 0;
#pragma unroll
      for (const float value : scaled[i]) own_largest = LargerMagnitude(own_largest, value);
      const std::uint32_t of_block = LargestOfBlock<T>(Magnitude(own_largest), team.width);
      const QuantizationFactor<float> own(batch.quantization, FromMagnitude(of_block) * scale.rstd);
      factor = own.factor;
      if (vector_of(i) < vectors && vector_of(i) % kBlockVectors == 0) {
        const int blocks = (vectors + kBlockVectors - 1) / kBlockVectors;
        segment.scale_out[NumberOf(batch, place) * blocks + vector_of(i) / kBlockVectors] =
            own.scale;
      }
    }
    if (vector_of(i) >= vectors) continue;
#pragma unroll
    for (float& value : scaled[i]) value *= scale.rstd;
    StoreBytes<kCount>(place.y + i * team.size() * kCount,
                       Quantize(batch.quantization, scaled[i], factor));
  }
}

}  // namespace

cudaError_t LaunchQuantizedRows(const Launch& launch, const StageBatch& batch) {
  const bool blocks = launch.spec.quantization_scale == QuantizationScale::kBlock;
  return WithNarrowType(launch.spec.dtype, [&](auto type) {
    using T = typename decltype(type)::Type;
    const auto with_gamma = [&](auto gamma) {
      using P = typename decltype(gamma)::Type;
      return blocks ? LaunchTeams(launch, batch, QuantizedRows<T, P, QuantizationScale::kBlock>)
                    : LaunchTeams(launch, batch, QuantizedRows<T, P, QuantizationScale::kRow>);
    };
    if (batch.gamma.data == nullptr) return with_gamma(ElementType<void>());
    return batch.gamma.dtype == batch.dtype ? with_gamma(ElementType<T>())
                                            : with_gamma(ElementType<float>());
  });
}

}  // namespace normd::norm::cuda
