// Rows in the shared memory of several persistent blocks: the kernel of two strategies, which
// differ in where the blocks of one row meet (a Meeting): in a cluster's distributed shared memory,
// or in global memory.
//
// The blocks of a launch form teams of blocks_per_row; a team takes rows, each block the same slice
// of each, cut into the runs of 16 warps (ring.cuh). One more warp merges the warps' partials,
// meets the other blocks and hands the scale back. A row is scaled one or two turns after it is
// summed, while the next rows arrive and are summed, so the meeting's latency is covered.
//
// Bytes: each element is read once and written once. Occupancy: one block of 17 warps with up to
// 193 KiB of shared memory. Determinism: places and merge orders follow from the row's length; no
// atomics touch the sums.

#ifndef NORMD_KERNELS_CUDA_RING_ROWS_CUH_
#define NORMD_KERNELS_CUDA_RING_ROWS_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/dispatch.cuh"
#include "kernels/cuda/meeting.cuh"
#include "kernels/cuda/moments.cuh"
#include "kernels/cuda/ring.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/tickets.cuh"

namespace normd::norm::cuda {

inline constexpr int kRingThreads = (kRingWarps + 1) * kLanes;

// Of the plan.
struct RingShape {
  int blocks_per_row;
  int granules;
};

// Named barriers of a block; barrier 0 is __syncthreads. Two of each kind, for even and odd turns:
// an arrival for the next turn can come before the last one is complete.
enum RingBarrier : int { kPartialsReady = 1, kScaleReady = 3 };

// The warp comes together first: one lane has written what the arrival announces.
__device__ inline void BarrierSync(int barrier) {
  __syncwarp();
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(kRingThreads) : "memory");
}
__device__ inline void BarrierArrive(int barrier) {
  __syncwarp();
  __threadfence_block();
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(kRingThreads) : "memory");
}

// What the meeting warp and the data warps tell each other, for even and odd turns.
template <typename A>
struct RingBoard {
  Moments<A> partials[2][kRingWarps];
  RowScale<A> scales[2];
  std::uint32_t rows[2];  // The row to ask for in the turn that the scale is for.
};

// Merges, meets and hands back, row by row. A team's first three rows follow from its number; each
// meeting yields the row after the next two.
template <typename A, typename Meeting>
__device__ void MeetForRows(const RowBatch& batch, const RingShape& shape, int elements_per_slice,
                            Meeting& meeting, RingBoard<A>& board) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const std::uint32_t teams = gridDim.x / shape.blocks_per_row;
  const std::uint32_t team = blockIdx.x / shape.blocks_per_row;
  const int rank = static_cast<int>(blockIdx.x) % shape.blocks_per_row;
  std::uint32_t row = team, second = team + teams, third = team + 2 * teams;
  for (std::uint32_t i = 0; row < batch.rows; ++i) {
    const int parity = i & 1;
    const BlockShares shares = {FindRow(batch, row).elements, elements_per_slice};
    BarrierSync(kPartialsReady + parity);
    const Moments<A> mine = lane < kRingWarps ? board.partials[parity][lane] : Moments<A>();
    const Moments<A> own = MergeLanes(mine, shares.Count<A>(rank), kLanes);
    std::uint32_t next = 0;
    const RowScale<A> scale = FinishRow(meeting.Exchange(own, shares, i, &next), batch.eps);
    if (lane == 0) {
      board.scales[parity] = scale;
      board.rows[parity] = next;
    }
    BarrierArrive(kScaleReady + parity);
    row = second;
    second = third;
    third = next;
  }
}

// The data warps' turns. With a fast meeting, row i is summed before row i - 1 is scaled, and two
// rows are asked for ahead; with a slow one, row i - 2 is scaled before row i is summed.
template <typename T, int kLag, typename Worker>
__device__ void TakeTurns(const RowBatch& batch, const RingShape& shape, const Worker& worker,
                          RingBoard<Accumulator<T>>& board) {
  static_assert(kLag == 1 || kLag == 2);
  constexpr int kAhead = kRingStages - kLag;
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  const std::uint32_t teams = gridDim.x / shape.blocks_per_row;
  const std::uint32_t team = blockIdx.x / shape.blocks_per_row;
  // rows[k] is the row of turn t - kLag + k; those before the first are none.
  std::uint32_t rows[kRingStages + 1];
#pragma unroll
  for (int k = 0; k <= kRingStages; ++k) {
    rows[k] = k < kLag ? batch.rows : team + (k - kLag) * teams;
  }
#pragma unroll
  for (int k = 0; k < kAhead; ++k) worker.AskFirst(rows[kLag + k], k);

  int stage = 0;
  for (std::uint32_t turn = 0; turn < kLag || rows[0] < batch.rows; ++turn) {
    const auto sum = [&] {
      const auto partial =
          worker.template AwaitAndSum < kLag == 1 ? kAhead - 1 : kAhead > (rows[kLag], stage);
      if (rows[kLag] >= batch.rows) return;
      if (worker.lane() == 0) board.partials[turn & 1][warp] = partial;
      BarrierArrive(kPartialsReady + static_cast<int>(turn & 1));
    };
    if (kLag == 1) sum();
    // The meeting for a row yields the row of three turns later.
    const int parity = static_cast<int>(turn - kLag) & 1;
    std::uint32_t yielded = turn < kLag ? team + (turn - kLag + 3) * teams : batch.rows;
    if (rows[0] < batch.rows) {
      BarrierSync(kScaleReady + parity);
      yielded = board.rows[parity];
    }
    rows[kRingStages] = yielded;
    worker.ScaleAndAsk(rows[0], board.scales[parity], yielded,
                       (stage + kRingStages - kLag) % kRingStages);
    if (kLag == 2) sum();
#pragma unroll
    for (int k = 0; k < kRingStages; ++k) rows[k] = rows[k + 1];
    stage = stage == kRingStages - 1 ? 0 : stage + 1;
  }
}

// Meeting: see the two strategies' files. Begin and End are called by all threads of the block,
// Exchange by the meeting warp.
template <typename T, typename Meeting, bool kAligned, bool kRegisterParams>
__global__ void __launch_bounds__(kRingThreads, 1)
    RingRows(const __grid_constant__ RowBatch batch, const __grid_constant__ RingShape shape,
             MeetingRoom* room) {
  extern __shared__ Granule ring[];
  __shared__ RingBoard<Accumulator<T>> board;
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  Meeting meeting(room, shape.blocks_per_row, batch.rows);
  meeting.Begin();
  if (warp == kRingWarps) {
    MeetForRows(batch, shape, kRingWarps * shape.granules * kLanes * kPerGranule<T>, meeting,
                board);
  } else {
    const int rank = static_cast<int>(blockIdx.x) % shape.blocks_per_row;
    const RingWarp<T, kAligned, kRegisterParams ? kRingParamGranules : 0> worker(
        batch, {static_cast<std::int64_t>(rank * kRingWarps + warp) * shape.granules * kLanes *
                    kGranuleBytes,
                ring + warp * kRingStages * RingStageGranules(shape.granules), shape.granules});
    TakeTurns<T, Meeting::kLag>(batch, shape, worker, board);
  }
  meeting.End();
}

// Calls function(kernel) for every kernel of a strategy, until it returns an error.
template <typename Meetings, typename Function>
cudaError_t ForEachRingKernel(Function function) {
  return ForEachElementType([&](auto element) {
    using T = typename decltype(element)::Type;
    using Meeting = typename Meetings::template Of<Accumulator<T>>;
    for (const auto kernel :
         {&RingRows<T, Meeting, true, true>, &RingRows<T, Meeting, true, false>,
          &RingRows<T, Meeting, false, true>, &RingRows<T, Meeting, false, false>}) {
      const cudaError_t error = function(kernel);
      if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
  });
}

// Calls enqueue(kernel, batch, shape), which returns a cudaError_t, for each row batch of a launch.
template <typename Meetings, typename Enqueue>
Status ForEachRingBatch(const Launch& launch, const char* what, Enqueue enqueue) {
  const RingShape shape = {launch.plan.blocks_per_row, launch.plan.granules};
  return ForEachRowBatch(launch, what, [&](auto element, auto aligned, const RowBatch& batch) {
    using T = typename decltype(element)::Type;
    using Meeting = typename Meetings::template Of<Accumulator<T>>;
    constexpr bool kAligned = decltype(aligned)::value;
    const auto kernel = KeepsParams(launch) ? &RingRows<T, Meeting, kAligned, true>
                                            : &RingRows<T, Meeting, kAligned, false>;
    return enqueue(kernel, batch, shape);
  });
}

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_RING_ROWS_CUH_
