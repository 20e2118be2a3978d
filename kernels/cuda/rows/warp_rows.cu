// Rows in the registers of one warp, or of 1 to 16 of its lanes: rows up to 2 KiB.
//
// Phases: every lane loads its vectors of the row; lanes merge their sums by shuffles; every lane
// scales what it holds and stores it. No shared memory, no barrier.
// Bytes: each element is read once and written once; gamma and beta come from the L1 cache.
// Occupancy: 256 threads; at most 4 vectors (16 registers) of data per lane, so 32 or more warps
// per multiprocessor, whose loads, sums and stores overlap each other. Determinism: the lane that
// holds an element and the order of the merge follow from its place in the row alone.

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

constexpr int kThreads = 256;

// Blocks of a multiprocessor that the compiler leaves registers for.
template <typename T, typename Params>
constexpr int WantedBlocks() {
  if (std::is_same_v<Params, AnyParams>) return 4;
  if (kIsAhead<Params>) return 2;
  return std::is_same_v<Params, ElementParams<T, false>> ? 6 : 5;
}

template <typename T, bool kAligned, typename Params, int G>
__global__ void __launch_bounds__(kThreads, MinBlocks(WantedBlocks<T, Params>(), kThreads))
    WarpRows(const __grid_constant__ RowBatch batch, const int lanes_per_row) {
  using A = Accumulator<T>;
  const int width = G == 1 ? lanes_per_row : kLanes;
  const int lane = static_cast<int>(threadIdx.x & (width - 1));
  // `width` divides kThreads; the number of the thread in the grid may exceed 32 bits.
  std::uint32_t index = blockIdx.x * (kThreads / width) + threadIdx.x / width;
  if (G > 1) index = OfWarp(index);
  // Lanes behind the last row keep company: shuffles want the whole warp.
  const bool exists = index < batch.rows;
  if (G > 1 && !exists) return;
  const Row row = FindRow(batch, exists ? index : batch.rows - 1);
  const int bytes = exists ? static_cast<int>(row.bytes) : 0;

  Vector vectors[G];
  const RegisterTile<T, kAligned, G> run(row, 0, bytes, lane, width);
  AwaitPreviousKernel();
  run.Load(vectors);
  const auto params = run.Ask(Params(), batch);
  const Moments<A> own = run.Sum(vectors, batch.centered);
  const A elements = static_cast<A>(static_cast<int>(row.bytes) / static_cast<int>(sizeof(T)));
  const RowScale<A> scale = FinishRow(MergeLanes(own, elements, width, batch.centered), batch.eps);
  run.Finish(params, batch, scale, vectors);
}

template <typename T, bool kAligned, int G, typename Params>
cudaError_t Enqueue(const Launch& launch, const RowBatch& batch, Params) {
  const auto lanes = static_cast<std::uint64_t>(batch.rows) * launch.plan.lanes_per_row;
  const auto blocks = static_cast<unsigned>((lanes + kThreads - 1) / kThreads);
  return LaunchOverlapping(launch.limits, launch.stream, WarpRows<T, kAligned, Params, G>, blocks,
                           kThreads, batch, launch.plan.lanes_per_row);
}

}  // namespace

Status LaunchWarpRows(const Launch& launch) {
  return ForEachRowBatch(launch, "warp rows", [&](auto element, auto aligned, const auto& batch) {
    using T = typename decltype(element)::Type;
    constexpr bool kAligned = decltype(aligned)::value;
    if (launch.plan.vectors == 1) return Enqueue<T, kAligned, 1>(launch, batch, AnyParams());
    return WithParams<T>(launch, batch, [&](auto params) {
      return WithAhead<kAligned>(launch, batch.rows, params, [&](auto chosen) {
        return launch.plan.vectors == 2 ? Enqueue<T, kAligned, 2>(launch, batch, chosen)
                                        : Enqueue<T, kAligned, 4>(launch, batch, chosen);
      });
    });
  });
}

}  // namespace normd::norm::cuda
