// Rows spread over the registers of a small thread-block cluster: rows over 64 KiB, as long as the
// plan says.
//
// The 16 warps of a block form teams. The teams of the same number in the blocks of a cluster share
// rows, each warp the same run of each row. Blocks are persistent: a team takes row after row. A
// warp
//   sums its part of a row and sends the partial to every block of the cluster
//   (cluster_exchange.cuh),
//   waits for the partials of the others and merges them for itself,
//   scales and stores the row chunk by chunk, and loads the next row in its place.
// No barrier holds the warps of a block together, and while one team waits the others load and
// store.
//
// Bytes: each element is read once and written once. Gamma and beta per element, of the rows' type
// or float32, stay in shared memory, one slice for all teams of a block; others come from the
// caches.
// Occupancy: one block of 16 warps with all the registers, half of which hold rows: 128 KiB. A work
// counter hands out rows (work_counter.cuh).
// Determinism: places and merge orders follow from the row's length; no atomics touch the sums.
//
// Blocks wait only for those of their own cluster, which the hardware starts together. Clusters
// that do not fit yet start later and take the remaining rows.

#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/moments.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/dispatch.cuh"
#include "kernels/cuda/rows/cluster_exchange.cuh"
#include "kernels/cuda/rows/cluster_warp.cuh"
#include "kernels/cuda/rows/row_plan.h"
#include "kernels/cuda/rows/run_params.cuh"
#include "kernels/cuda/rows/work_counter.cuh"

namespace normd::norm::cuda {
namespace {

constexpr int kThreads = kClusterWarps * kLanes;

struct ClusterShape {
  int blocks;       // In a cluster.
  int warps;        // In each block of a team.
  int run_bytes;    // A warp's part of a row.
  int param_bytes;  // A run's gamma and beta in shared memory; 0 if they are not there.
};

template <typename T, bool kAligned, typename Params, RowSums kSums>
__global__ void __launch_bounds__(kThreads, 1)
    ClusterRows(const __grid_constant__ RowBatch batch, const __grid_constant__ ClusterShape shape,
                ExchangeArea* area) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  using A = Accumulator<T>;
  extern __shared__ __align__(128) Vector memory[];
  __shared__ std::uint64_t barriers[kClusterWarps][2];
  const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kLanes, 0);
  const int teams = kClusterWarps / shape.warps;
  const int number = warp / shape.warps;
  const std::uint32_t set_bytes = kClusterWarps * shape.blocks * kVectorBytes;
  const std::uint32_t slots = SharedAddress(memory);
  const ClusterTeam team = {shape.blocks,
                            shape.warps,
                            static_cast<int>(blockIdx.x) % shape.blocks,
                            warp % shape.warps,
                            slots + number * shape.warps * shape.blocks * kVectorBytes,
                            set_bytes,
                            SharedAddress(barriers[number])};
  if (threadIdx.x < kClusterWarps * 2) {
    InitBarrier(SharedAddress(barriers[0]) + threadIdx.x * sizeof(std::uint64_t), 1);
    PublishBarriers();
  }
  const std::uint32_t clusters = gridDim.x / shape.blocks;
  const std::uint32_t first = number * clusters + blockIdx.x / shape.blocks;
  std::uint32_t row = number < teams ? first : batch.rows;  // Some warps may be left over.
  RowScheduler rows(&area->next_row, first, clusters * teams);
  const RunPlace place = {std::int64_t{team.rank()} * shape.run_bytes, shape.run_bytes};
  ClusterWarp<T, kAligned, Params> worker(
      batch, place,
      shape.param_bytes == 0 ? 0 : slots + 2 * set_bytes + team.warp * shape.param_bytes);
  worker.Load(row);
  if (number == 0) worker.FetchParams();
  AwaitCopies();
  __syncthreads();
  SyncCluster();
  const ClusterExchange exchange(team);
  for (std::uint32_t turn = 0; row < batch.rows; ++turn) {
    const auto statistics = StatisticsOf<kSums>(batch);
    const Moments<A> partial = worker.Sum(statistics);
    exchange.Send(partial, team.rank() == 0 ? rows.After(turn) : 0, turn);
    worker.Prepare();
    const BlockShares shares = {worker.row_elements(),
                                shape.run_bytes / static_cast<int>(sizeof(T))};
    const std::uint32_t current = row;
    const Moments<A> whole = exchange.Collect(shares, statistics, turn, &row);
    const RowScale<A> scale = FinishStatistics(statistics, whole, batch.eps);
    if (team.rank() == 0 && threadIdx.x % kLanes == 0) WriteStatistics(batch, current, scale);
    worker.Finish(scale, row);
  }
  if (team.rank() == 0 && first < batch.rows && number < teams) rows.Leave(batch.rows);
#endif
}

// The kinds of parameters (run_params.cuh) as this kernel takes them.
template <typename Params>
struct ClusterKind {
  using Type = Params;
  static constexpr bool kElements = false;
};
template <typename T, typename P, typename Activations>
struct ClusterKind<RunElements<T, P, Activations>> {
  using Type = RunElements<T, P, Activations, true>;
  static constexpr bool kElements = true;
};

// A block's shared memory for the slots of an exchange and `param_bytes` for each warp's run.
std::size_t SharedBytes(const Plan& plan, int param_bytes) {
  return ClusterSlotBytes(plan.blocks_per_row) + static_cast<std::size_t>(plan.warps) * param_bytes;
}

template <typename T, bool kAligned, typename Params, RowSums kSums = RowSums::kMoments>
cudaError_t Enqueue(const Launch& launch, const RowBatch& batch, int param_bytes) {
  const Plan& plan = launch.plan;
  const auto blocks = static_cast<unsigned>(plan.blocks_per_row);
  const ClusterShape shape = {plan.blocks_per_row, plan.warps, plan.vectors * kStepBytes,
                              param_bytes};
  const auto held = static_cast<unsigned>(launch.limits.resident_clusters[blocks]);
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = blocks;
  cluster.val.clusterDim.y = 1;
  cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(std::min<unsigned>(batch.rows, held) * blocks);
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = SharedBytes(plan, param_bytes);
  config.stream = launch.stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, &ClusterRows<T, kAligned, Params, kSums>, batch, shape,
                            static_cast<ExchangeArea*>(launch.exchange));
}

// Aligned rows. Parameters of elements that cannot stay in shared memory go to RunGeneral.
template <typename T, typename Kind>
cudaError_t EnqueueKind(const Launch& launch, const RowBatch& batch) {
  using Params = typename Kind::Type;
  const int param_bytes = Params::RunParamBytes(launch);
  if constexpr (Kind::kElements) {
    if (param_bytes == 0 || SharedBytes(launch.plan, param_bytes) + kReservedSharedBytes >
                                launch.limits.shared_bytes_per_block) {
      return Enqueue<T, true, RunGeneral>(launch, batch, 0);
    }
  }
  return Enqueue<T, true, Params>(launch, batch, param_bytes);
}

// Unaligned rows, likewise.
template <typename T, typename P>
bool EnqueueWordsOf(const Launch& launch, const RowBatch& batch, cudaError_t* error) {
  if (!AreElementParams<P>(launch, batch)) return false;
  const int param_bytes = RunWords<P>::template RunParamBytes<T>(launch);
  if (param_bytes == 0 || SharedBytes(launch.plan, param_bytes) + kReservedSharedBytes >
                              launch.limits.shared_bytes_per_block) {
    return false;
  }
  *error = Enqueue<T, false, RunWords<P>>(launch, batch, param_bytes);
  return true;
}
template <typename T>
cudaError_t EnqueueWords(const Launch& launch, const RowBatch& batch) {
  cudaError_t error = cudaSuccess;
  if (EnqueueWordsOf<T, T>(launch, batch, &error)) return error;
  if (EnqueueWordsOf<T, float>(launch, batch, &error)) return error;
  return Enqueue<T, false, RunGeneral>(launch, batch, 0);
}

template <typename T>
cudaError_t EnqueueNorms(const Launch& launch, const RowBatch& batch, bool aligned) {
  constexpr RowSums kNorms = RowSums::kNorms;
  return aligned ? Enqueue<T, true, RunChannels<T, NoActivation>, kNorms>(launch, batch, 0)
                 : Enqueue<T, false, RunWords<RowParams>, kNorms>(launch, batch, 0);
}

}  // namespace

cudaError_t PrepareClusterRows(const DeviceLimits& limits) {
  const auto prepare = [&](auto kernel) {
    const cudaError_t error = AllowSharedBytes(kernel, limits);
    if (error != cudaSuccess) return error;
    return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  };
  return ForEachElementType([&](auto element) -> cudaError_t {
    using T = typename decltype(element)::Type;
    if constexpr (std::is_same_v<T, double>) {
      return cudaSuccess;
    } else {
      constexpr RowSums kMoments = RowSums::kMoments, kNorms = RowSums::kNorms;
      cudaError_t error = prepare(&ClusterRows<T, false, RunGeneral, kMoments>);
      if (error == cudaSuccess) error = prepare(&ClusterRows<T, false, RunWords<T>, kMoments>);
      if (error == cudaSuccess) error = prepare(&ClusterRows<T, false, RunWords<float>, kMoments>);
      if (error == cudaSuccess) {
        error = prepare(&ClusterRows<T, true, RunChannels<T, NoActivation>, kNorms>);
      }
      if (error == cudaSuccess) {
        error = prepare(&ClusterRows<T, false, RunWords<RowParams>, kNorms>);
      }
      if (error != cudaSuccess) return error;
      return ForEachRunKind<T, true, PlainSilu>([&](auto kind) {
        using Params = typename ClusterKind<typename decltype(kind)::Type>::Type;
        return prepare(&ClusterRows<T, true, Params, kMoments>);
      });
    }
  });
}

Status LaunchClusterRows(const Launch& launch) {
  return ForEachRowBatch(launch, "cluster rows",
                         [&](auto element, auto aligned, const RowBatch& batch) -> cudaError_t {
                           using T = typename decltype(element)::Type;
                           if constexpr (std::is_same_v<T, double>) {
                             return cudaErrorInvalidValue;  // No plan has this.
                           } else if (IsNorm(launch)) {
                             return EnqueueNorms<T>(launch, batch, decltype(aligned)::value);
                           } else if constexpr (!decltype(aligned)::value) {
                             return EnqueueWords<T>(launch, batch);
                           } else {
                             return WithRunKind<T, true, PlainSilu>(launch, batch, [&](auto kind) {
                               return EnqueueKind<T, ClusterKind<typename decltype(kind)::Type>>(
                                   launch, batch);
                             });
                           }
                         });
}

}  // namespace normd::norm::cuda
