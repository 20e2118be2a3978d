// Rows in the registers of one warp, or of 1 to 16 of its lanes: rows up to 1 KiB.
//
// Phases: every lane loads its granules of the row; lanes merge their sums by shuffles; every lane
// scales what it holds and stores it. No shared memory, no barrier.
// Bytes: each element is read once and written once; gamma and beta come from the L1 cache.
// Occupancy: 256 threads; at most 2 granules (8 registers) of data per lane, so 32 or more warps
// per multiprocessor, whose loads, sums and stores overlap each other. Determinism: the lane that
// holds an element and the order of the merge follow from its place in the row alone.

#include <cuda_runtime.h>

#include "kernels/cuda/dispatch.cuh"
#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/memory.cuh"
#include "kernels/cuda/moments.cuh"
#include "kernels/cuda/rows.cuh"

namespace normd::norm::cuda {
namespace {

constexpr int kThreads = 256;

template <typename T, bool kAligned, int G>
__global__ void __launch_bounds__(kThreads, 4)
    WarpRows(const __grid_constant__ RowBatch batch, const int width) {
  using A = Accumulator<T>;
  const int lane = static_cast<int>(threadIdx.x) & (width - 1);
  // `width` divides kThreads; the number of the thread in the grid may exceed 32 bits.
  const std::uint32_t index = blockIdx.x * (kThreads / width) + threadIdx.x / width;
  // Lanes behind the last row keep company: shuffles want the whole warp.
  const bool exists = index < batch.rows;
  const Row row = FindRow(batch, exists ? index : batch.rows - 1);
  const int run_bytes = G * width * kGranuleBytes;
  const int bytes = exists ? ClampToRun(row.bytes, run_bytes) : 0;

  Granule granules[G];
  LoadRun<T, kAligned>(row.x, bytes, lane, width, granules);
  const Moments<A> own = SumRun<T, kAligned>(granules, bytes, lane, width, batch.centered);
  const Moments<A> moments = MergeLanes(own, static_cast<A>(row.elements), width);
#pragma unroll
  for (int i = 0; i < G; ++i) Repack(granules[i]);

  RunEpilogue<T> epilogue(batch, row, FinishRow(moments, batch.eps), 0, row.elements);
#pragma unroll
  for (int i = 0; i < G; ++i) {
    const int offset = (i * width + lane) * kGranuleBytes;
    granules[i] = epilogue.Apply(granules[i], offset / static_cast<int>(sizeof(T)),
                                 ElementsPresent<T>(bytes, offset));
  }
  StoreRun<T, kAligned>(row.y, bytes, lane, width, granules);
}

template <typename T, bool kAligned, int G>
cudaError_t Enqueue(const Launch& launch, const RowBatch& batch) {
  const auto lanes = static_cast<std::uint64_t>(batch.rows) * launch.plan.lanes_per_row;
  const auto blocks = static_cast<unsigned>((lanes + kThreads - 1) / kThreads);
  WarpRows<T, kAligned, G>
      <<<blocks, kThreads, 0, launch.stream>>>(batch, launch.plan.lanes_per_row);
  return cudaGetLastError();
}

}  // namespace

Status LaunchWarpRows(const Launch& launch) {
  return ForEachRowBatch(launch, "warp rows", [&](auto element, auto aligned, const auto& batch) {
    using T = typename decltype(element)::Type;
    constexpr bool kAligned = decltype(aligned)::value;
    switch (launch.plan.granules) {
      case 1: return Enqueue<T, kAligned, 1>(launch, batch);
      default: return Enqueue<T, kAligned, 2>(launch, batch);
    }
  });
}

}  // namespace normd::norm::cuda
