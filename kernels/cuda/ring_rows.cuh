// Persistent blocks that share rows: the kernel of two strategies, which differ in where the blocks
// of one row meet (a Meeting): in a cluster's distributed shared memory, or in global memory.
//
// The blocks of a launch form teams of blocks_per_row; a team computes every teams-th row, each
// block the same slice of each, cut into the runs of 16 warps (ring.cuh). One more warp merges the
// warps' partials, meets the other blocks and hands the scale back. Row i is scaled while the sums
// of row i + 1 are already out, so a meeting's latency is covered by the wait for the next row's
// data:
//
//   data warps    sum i+1 | scale, store i; ask i+stages | sum i+2 | scale, store i+1; ...
//   meeting warp          | merge i+1, exchange ................... | merge i+2, exchange ....
//
// Bytes: each element is read once and written once. Occupancy: one block of 17 warps with most of
// the multiprocessor's shared memory. Determinism: places and merge orders follow from the row's
// length; no atomics touch the sums.

#ifndef NORMD_KERNELS_CUDA_RING_ROWS_CUH_
#define NORMD_KERNELS_CUDA_RING_ROWS_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/dispatch.cuh"
#include "kernels/cuda/meeting.cuh"
#include "kernels/cuda/moments.cuh"
#include "kernels/cuda/ring.cuh"
#include "kernels/cuda/rows.cuh"

namespace norm::cuda {

inline constexpr int kRingThreads = (kRingWarps + 1) * kLanes;

// Of the plan.
struct RingShape {
  int blocks_per_row;
  int granules;
  int stages;
};

// Of a meeting that needs no memory of the launch.
struct NoPlace {};

// Named barriers of a block; barrier 0 is __syncthreads. Two of each kind, for even and odd rows:
// an arrival for the next row can come before the last one is complete.
enum RingBarrier : int { kPartialsReady = 1, kScaleReady = 3 };

__device__ inline void BarrierSync(int barrier) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(kRingThreads) : "memory");
}
__device__ inline void BarrierArrive(int barrier) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(kRingThreads) : "memory");
}

// Meeting: see the three strategies' files. Begin and End are called by all threads of the block,
// Exchange by the meeting warp.
template <typename T, typename Meeting, bool kAligned, bool kRegisterParams>
__global__ void __launch_bounds__(kRingThreads, 1)
    RingRows(const __grid_constant__ RowBatch batch, const __grid_constant__ RingShape shape,
             const typename Meeting::Place place) {
  using A = Accumulator<T>;
  extern __shared__ Granule ring[];
  __shared__ Moments<A> partials[2][kRingWarps];
  __shared__ RowScale<A> scales[2];
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  const std::uint32_t teams = gridDim.x / shape.blocks_per_row;
  const std::uint32_t team = blockIdx.x / shape.blocks_per_row;
  const std::uint32_t rows = team < batch.rows ? (batch.rows - 1 - team) / teams + 1 : 0;

  Meeting meeting(place, shape);
  meeting.Begin();
  if (warp == kRingWarps) {
    const std::int64_t slice =
        static_cast<std::int64_t>(kRingWarps) * shape.granules * kLanes * kPerGranule<T>;
    for (std::uint32_t i = 0; i < rows; ++i) {
      const BlockShares shares = {FindRow<T>(batch, team + i * teams).elements, slice};
      BarrierSync(kPartialsReady + (i & 1));
      const Moments<A> mine = lane < kRingWarps ? partials[i & 1][lane] : Moments<A>();
      const Moments<A> own =
          MergeLanes(mine, shares.Count<A>(blockIdx.x % shape.blocks_per_row), kLanes);
      const RowScale<A> scale = FinishRow(meeting.Exchange(own, shares, i), batch.eps);
      if (lane == 0) scales[i & 1] = scale;
      BarrierArrive(kScaleReady + (i & 1));
    }
  } else {
    const int rank = static_cast<int>(blockIdx.x) % shape.blocks_per_row;
    const RingWarp<T, kAligned, kRegisterParams> worker(
        batch, {static_cast<std::int64_t>(rank * kRingWarps + warp) * shape.granules * kLanes *
                    kGranuleBytes,
                ring + warp * shape.stages * RingStageGranules(shape.granules), shape.granules});
    for (int stage = 0; stage < shape.stages; ++stage) {
      const std::uint32_t index = team + stage * teams;
      if (index < batch.rows) worker.Ask(FindRow<T>(batch, index), stage);
      CommitCopies();
    }
    Row row = {};
    int sum_stage = 0;
    int scale_stage = 0;
    for (std::uint32_t i = 0; i <= rows; ++i) {
      const Row previous = row;
      if (i < rows) {
        row = FindRow<T>(batch, team + i * teams);
        WaitCopies(shape.stages - (i == 0 ? 1 : 2));  // All rows behind this one.
        const Moments<A> partial = worker.Sum(row, sum_stage);
        if (lane == 0) partials[i & 1][warp] = partial;
        BarrierArrive(kPartialsReady + (i & 1));
        sum_stage = sum_stage + 1 == shape.stages ? 0 : sum_stage + 1;
      }
      if (i > 0) {
        const std::uint32_t next = team + (i - 1 + shape.stages) * teams;
        const bool refill = next < batch.rows;
        const Row next_row = FindRow<T>(batch, refill ? next : batch.rows - 1);
        BarrierSync(kScaleReady + ((i - 1) & 1));
        worker.Scale(previous, scales[(i - 1) & 1], refill, next_row, scale_stage);
        CommitCopies();
        scale_stage = scale_stage + 1 == shape.stages ? 0 : scale_stage + 1;
      }
    }
  }
  meeting.End();
}

// Gives the kernel of a launch to `enqueue`, which returns a cudaError_t: the one place where the
// four template arguments meet. `blocks_per_row` and the rest of the plan are run-time values.
template <typename Meeting, typename Enqueue>
Status ForEachRingBatch(const Launch& launch, const char* what, Enqueue enqueue) {
  const RingShape shape = {launch.plan.blocks_per_row, launch.plan.granules, launch.plan.stages};
  return ForEachRowBatch(launch, what, [&](auto element, auto aligned, const RowBatch& batch) {
    using T = typename decltype(element)::Type;
    constexpr bool kAligned = decltype(aligned)::value;
    using MeetingOfT = typename Meeting::template Of<Accumulator<T>>;
    const bool register_params =
        launch.plan.params_in_registers && launch.spec.activation == Activation::kNone;
    const auto kernel = register_params ? &RingRows<T, MeetingOfT, kAligned, true>
                                        : &RingRows<T, MeetingOfT, kAligned, false>;
    const cudaError_t error = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                                   cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                   static_cast<int>(launch.plan.shared_bytes));
    return error != cudaSuccess ? error : enqueue(kernel, batch, shape);
  });
}

}  // namespace norm::cuda

#endif  // NORMD_KERNELS_CUDA_RING_ROWS_CUH_
