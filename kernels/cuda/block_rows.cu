// Rows in the registers of one block: rows of 4 KiB to 64 KiB.
//
// Phases: each warp loads a run of 2 KiB; lanes merge by shuffles, warps through shared memory,
// where after one barrier every warp merges all partials for itself; each lane scales and stores.
// Bytes: each element is read once and written once; gamma and beta come from the L1 cache, which
// the rows themselves pass by.
// Occupancy: as many warps as the row needs, at most 32, under 64 registers: 32 warps or more per
// multiprocessor. Rows up to 16 KiB leave room for several blocks whose phases overlap.
// Determinism: fixed places and a fixed merge order; no atomics.

#include <cuda_runtime.h>

#include "kernels/cuda/dispatch.cuh"
#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/memory.cuh"
#include "kernels/cuda/moments.cuh"
#include "kernels/cuda/rows.cuh"

namespace norm::cuda {
namespace {

constexpr int kMaxThreads = 512;
constexpr int kGranules = 4;  // Per lane; the plan cuts rows accordingly.
constexpr int kRunBytes = kGranules * kLanes * kGranuleBytes;

template <typename T, bool kAligned>
__global__ void __launch_bounds__(kMaxThreads) BlockRows(const __grid_constant__ RowBatch batch) {
  using A = Accumulator<T>;
  __shared__ Moments<A> partials[kMaxThreads / kLanes];
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  const int warps = static_cast<int>(blockDim.x) / kLanes;
  const Row row = FindRow<T>(batch, blockIdx.x);
  const int begin = warp * kRunBytes;
  const int bytes =
      ClampToRun(row.elements * static_cast<std::int64_t>(sizeof(T)) - begin, kRunBytes);
  const int present = min(bytes, kRunBytes) / static_cast<int>(sizeof(T));

  Granule granules[kGranules];
  LoadRun<T, kAligned>(row.x + begin, bytes, lane, kLanes, granules);
  const Moments<A> own = SumRun<T, kAligned>(granules, bytes, lane, kLanes, batch.centered);
  const Moments<A> partial = MergeLanes(own, static_cast<A>(present), kLanes);
  if (lane == 0) partials[warp] = partial;
  __syncthreads();
  const Moments<A> moments = MergeLanes(lane < warps ? partials[lane] : Moments<A>(),
                                        static_cast<A>(row.elements), kLanes);
  Repack(granules);

  const int element = begin / static_cast<int>(sizeof(T));
  RunEpilogue<T> epilogue(batch, row, FinishRow(moments, batch.eps), element, element + present);
#pragma unroll
  for (int i = 0; i < kGranules; ++i) {
    const int offset = (i * kLanes + lane) * kGranuleBytes;
    granules[i] = epilogue.Apply(granules[i], element + offset / static_cast<int>(sizeof(T)),
                                 ElementsPresent<T>(bytes, offset));
  }
  StoreRun<T, kAligned>(row.y + begin, bytes, lane, kLanes, granules);
}

}  // namespace

Status LaunchBlockRows(const Launch& launch) {
  return ForEachRowBatch(launch, "block rows", [&](auto element, auto aligned, const auto& batch) {
    using T = typename decltype(element)::Type;
    BlockRows<T, decltype(aligned)::value>
        <<<batch.rows, launch.plan.warps * kLanes, 0, launch.stream>>>(batch);
    return cudaGetLastError();
  });
}

}  // namespace norm::cuda
