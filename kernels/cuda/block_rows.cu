// Rows in the registers of a block: rows of 2 KiB to 64 KiB, and to 128 KiB where rows do not share
// gamma and beta element by element.
//
// Phases: every lane loads its granules of the row; lanes merge their sums by shuffles; each warp
// writes its partial to shared memory, and after one barrier every warp merges all partials for
// itself; every lane scales what it holds and stores it.
// Bytes: each element is read once and written once; gamma and beta per element come from the L1
// cache, which only the blocks' parameters stay in.
// Occupancy: as many blocks as registers hold, 96 to 128 KiB of rows on a multiprocessor of 256 KiB
// of registers: while one waits for its loads or its barrier, others load and store. The hardware
// hands out rows, so that multiprocessors with a larger share of the bandwidth get more of them.
// Determinism: places and merge orders follow from the row's length; no atomics.

#include <cuda_runtime.h>

#include "kernels/cuda/dispatch.cuh"
#include "kernels/cuda/held_run.cuh"
#include "kernels/cuda/memory.cuh"
#include "kernels/cuda/moments.cuh"
#include "kernels/cuda/rows.cuh"

namespace normd::norm::cuda {
namespace {

// Blocks of a multiprocessor that the compiler leaves registers for: as many as it can without
// moving registers to memory, which costs more than it wins.
template <typename T, bool kAligned, typename Params>
constexpr int WantedBlocks(int granules, int threads) {
  if (granules == kBlockManyGranules) {
    return kAligned || sizeof(T) == 2 || threads > 512 ? 1024 / threads : 1;
  }
  if (!kAligned) return 1024 / threads;
  if (std::is_same_v<Params, AnyParams>) return 4;
  return std::is_same_v<Params, ElementParams<T, false>> ? 6 : 5;
}

template <typename T, bool kAligned, typename Params, int G, int kThreads>
__global__ void __launch_bounds__(kThreads,
                                  MinBlocks(WantedBlocks<T, kAligned, Params>(G, kThreads),
                                            kThreads))
    BlockRows(const __grid_constant__ RowBatch batch) {
  using A = Accumulator<T>;
  constexpr int kWarps = kThreads / kLanes;
  constexpr int kRunBytes = G * kLanes * kGranuleBytes;
  __shared__ Moments<A> partials[kWarps];
  const int lane = static_cast<int>(threadIdx.x % kLanes);
  const int warp = static_cast<int>(threadIdx.x / kLanes);
  const int begin = warp * kRunBytes;
  const Row row = FindRow(batch, blockIdx.x);
  const int row_bytes = static_cast<int>(row.bytes);
  const int left = ClampToRun(row_bytes - begin, kRunBytes);
  const int bytes = min(left, kRunBytes);

  Granule granules[G];
  LoadRun<T, kAligned>(row.x + begin, kAligned ? 0 : Misalignment(row.x), left, lane, kLanes,
                       granules);
  const Moments<A> own = SumRun<T, kAligned>(granules, bytes, lane, kLanes, batch.centered);
  const A count = static_cast<A>(bytes / static_cast<int>(sizeof(T)));
  const Moments<A> run = MergeLanes(own, count, kLanes);
  if (lane == 0) partials[warp] = run;
  __syncthreads();
  const bool is_warp = lane % kWarps < static_cast<int>(blockDim.x / kLanes);
  const Moments<A> partial = is_warp ? partials[lane % kWarps] : Moments<A>();
  const A elements = static_cast<A>(row_bytes / static_cast<int>(sizeof(T)));
  const RowScale<A> scale = FinishRow(MergeLanes(partial, elements, kWarps), batch.eps);
  const RunFinish<T, kAligned, G> finish(batch, row, scale, begin, bytes, lane, kLanes);
  finish.Apply(Params(), granules);
}

template <typename T, bool kAligned, int G, int kThreads, typename Params>
cudaError_t Enqueue(const Launch& launch, const RowBatch& batch, Params) {
  const auto threads = static_cast<unsigned>(launch.plan.warps * kLanes);
  BlockRows<T, kAligned, Params, G, kThreads><<<batch.rows, threads, 0, launch.stream>>>(batch);
  return cudaGetLastError();
}

}  // namespace

Status LaunchBlockRows(const Launch& launch) {
  return ForEachRowBatch(launch, "block rows", [&](auto element, auto aligned, const auto& batch) {
    using T = typename decltype(element)::Type;
    constexpr bool kAligned = decltype(aligned)::value;
    constexpr int kFew = kBlockFewGranules;
    constexpr int kMany = kBlockManyGranules;
    if (launch.plan.warps > kBlockWarps) {
      return Enqueue<T, kAligned, kMany, kBlockMaxWarps * kLanes>(launch, batch, AnyParams());
    }
    return WithParams<T>(launch, batch, [&](auto params) {
      if (launch.plan.granules == kMany) {
        return Enqueue<T, kAligned, kMany, kBlockWarps * kLanes>(launch, batch, params);
      }
      constexpr int kWarps = kAligned ? kBlockFewWarps : kBlockWarps;
      return Enqueue<T, kAligned, kFew, kWarps * kLanes>(launch, batch, params);
    });
  });
}

}  // namespace normd::norm::cuda
