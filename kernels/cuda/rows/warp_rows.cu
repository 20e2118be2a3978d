// Rows in the registers of one warp, or of 1 to 16 of its lanes: rows up to 2 KiB.
//
// Phases: every lane loads its vectors of the row; lanes merge their sums by shuffles; every lane
// scales its vectors and stores them. No shared memory, no barrier.
// Bytes: each element is read once and written once; gamma and beta come from the L1 cache.
// Occupancy: 256 threads; at most 4 vectors (16 registers) of data per lane, so 32 or more warps
// per multiprocessor, whose loads, sums and stores overlap each other.
// Determinism: the lane that holds an element and the order of the merge follow from its place in
// the row alone.

#include <cuda_runtime.h>

#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/device/memory.cuh"
#include "kernels/cuda/device/moments.cuh"
#include "kernels/cuda/dispatch.cuh"
#include "kernels/cuda/row_batch.cuh"
#include "kernels/cuda/rows/row_plan.h"
#include "kernels/cuda/rows/vector_tile.cuh"
#include "kernels/cuda/rows/word_tile.cuh"

namespace normd::norm::cuda {
namespace {

constexpr int kThreads = 256;  // Per block, at most.

// The threads of a block. When blocks follow one another, small ones make room for the next as soon
// as their rows are done. A launch that the device holds at once starts sooner in few large ones,
// unless it leaves most of a multiprocessor idle.
template <bool kAligned, typename Params>
unsigned BlockThreads(const Launch& launch, std::uint64_t warps) {
  const auto multiprocessors = static_cast<std::uint64_t>(launch.limits.multiprocessors);
  if (warps <= 4 * multiprocessors) return 128;
  constexpr bool kFewRegisters =
      kAligned && !std::is_same_v<Params, GeneralParams> && !std::is_same_v<Params, RowParams>;
  return kFewRegisters && warps > 40 * multiprocessors ? 64 : kThreads;
}

// Blocks of kThreads on a multiprocessor for which the compiler reserves registers.
template <typename T, typename Params>
constexpr int WantedBlocks() {
  if (std::is_same_v<Params, GeneralParams>) return 4;
  if (kIsAhead<Params>) return 2;
  return std::is_same_v<Params, ElementParams<T, false>> ? 6 : 5;
}

// The statistics of a row of `width` lanes.
template <typename Tile, typename T, int G>
__device__ Moments<Accumulator<T>> SumRow(const Tile& run, Vector (&vectors)[G], int elements,
                                          int width, bool centered) {
  using A = Accumulator<T>;
  if constexpr (kSharedReference<T>) {
    const ReferenceSums<A> sums = AddLanes(run.SumTogether(vectors, centered), width, centered);
    Moments<A> row = MomentsOfSums(sums.reference, sums.sum, sums.squares, elements, centered);
    const bool far = centered && IsFar(sums.squares, row.m2);
    if (__any_sync(kAllLanes, far)) {  // All rows of the warp are summed again together.
      const ReferenceSums<A> again =
          AddLanes(run.SumTogetherAgain(vectors, row.reference), width, true);
      if (far) row = MomentsOfSums(again.reference, again.sum, again.squares, elements, true);
    }
    return row;
  } else {
    return MergeLanes(run.Sum(vectors, centered), static_cast<A>(elements), width, centered);
  }
}

// kNarrow: a row has `lanes_per_row` lanes, a part of a warp; else a whole warp.
template <typename T, bool kAligned, typename Params, int G, bool kNarrow, Samples kSamples>
__global__ void __launch_bounds__(kThreads, MinBlocks(WantedBlocks<T, Params>(), kThreads))
    WarpRows(const __grid_constant__ RowBatch batch, const int lanes_per_row) {
  using A = Accumulator<T>;
  // Lanes of different rows in one warp cannot pass words to each other.
  using Tile = std::conditional_t<kNarrow && (G > 1), VectorTile<T, G, kAligned>,
                                  RegisterTile<T, kAligned, G>>;
  const int width = kNarrow ? lanes_per_row : kLanes;
  const int lane = static_cast<int>(threadIdx.x & (width - 1));
  // The thread's number in the grid may exceed 32 bits; the row's does not.
  const int width_bits = kNarrow ? __ffs(width) - 1 : 5;
  std::uint32_t index = blockIdx.x * (blockDim.x >> width_bits) + (threadIdx.x >> width_bits);
  if (!kNarrow) index = OfWarp(index);
  // Lanes after the last row take part: shuffles need the whole warp.
  const bool exists = index < batch.rows;
  if (!kNarrow && !exists) return;
  const Row row = FindRow<kSamples>(batch, exists ? index : batch.rows - 1);
  const int bytes = exists ? static_cast<int>(row.bytes) : 0;

  Vector vectors[G];
  const Tile run(row, 0, bytes, lane, width);
  AwaitPreviousKernel();
  if constexpr (kAligned) LetNextKernelBeginEarly<true>();
  run.Load(vectors);
  const auto params = run.Ask(Params(), batch);
  const int elements = static_cast<int>(row.bytes) / static_cast<int>(sizeof(T));
  const Moments<A> whole = SumRow<Tile, T>(run, vectors, elements, width, batch.centered);
  const RowScale<A> scale = FinishRow(whole, batch.eps, batch.centered);
  if (lane == 0 && exists) WriteStatistics(batch, index, scale);
  run.Finish(params, batch, scale, vectors);
}

template <typename T, bool kAligned, int G, bool kNarrow, typename Params>
cudaError_t Enqueue(const Launch& launch, const RowBatch& batch, Params) {
  const auto lanes = static_cast<std::uint64_t>(batch.rows) * launch.plan.lanes_per_row;
  const unsigned threads = BlockThreads<kAligned, Params>(launch, lanes / kLanes);
  const auto blocks = static_cast<unsigned>((lanes + threads - 1) / threads);
  const auto enqueue = [&](auto kernel) {
    return LaunchOverlapping(launch.limits, launch.stream, kernel, blocks, threads, batch,
                             launch.plan.lanes_per_row);
  };
  if constexpr (!kIsAhead<Params>) {
    if (batch.has_gaps) {
      return enqueue(WarpRows<T, kAligned, Params, G, kNarrow, Samples::kBetweenGaps>);
    }
  }
  return enqueue(WarpRows<T, kAligned, Params, G, kNarrow, Samples::kTogether>);
}

}  // namespace

Status LaunchWarpRows(const Launch& launch) {
  return ForEachRowBatch(launch, "warp rows", [&](auto element, auto aligned, const auto& batch) {
    using T = typename decltype(element)::Type;
    constexpr bool kAligned = decltype(aligned)::value;
    const bool narrow = launch.plan.lanes_per_row < kLanes;
    if (launch.plan.vectors == 1)
      return Enqueue<T, kAligned, 1, true>(launch, batch, GeneralParams());
    if constexpr (!kAligned) {
      if (narrow) return Enqueue<T, false, kWarpMaxVectors, true>(launch, batch, GeneralParams());
    }
    return WithParams<T>(launch, batch, [&](auto params) {
      const std::int64_t warps = batch.rows * std::int64_t{launch.plan.lanes_per_row} / kLanes;
      return WithAhead<kAligned>(launch, warps, params, [&](auto chosen) {
        if constexpr (kAligned) {
          return narrow ? Enqueue<T, true, kWarpMaxVectors, true>(launch, batch, chosen)
                        : Enqueue<T, true, kWarpMaxVectors, false>(launch, batch, chosen);
        } else {
          return launch.plan.vectors == 2
                     ? Enqueue<T, false, 2, false>(launch, batch, chosen)
                     : Enqueue<T, false, kWarpMaxVectors, false>(launch, batch, chosen);
        }
      });
    });
  });
}

}  // namespace normd::norm::cuda
