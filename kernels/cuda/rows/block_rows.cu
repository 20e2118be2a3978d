// Rows in the registers of a block: rows of 2 KiB to 64 KiB, and to 128 KiB where rows do not share
// gamma and beta element by element.
//
// Phases: every lane loads its vectors of the row; lanes merge their sums by shuffles; each warp
// writes its partial to shared memory, and after one barrier every warp merges all partials for
// itself; every lane scales its vectors and stores them. 16-bit rows whose sums were taken too far
// from the mean are summed again before that (shared_reference.cuh).
// Bytes: each element is read once and written once; gamma and beta per element come from the L1
// cache, in which only the blocks' parameters stay.
// Occupancy: as many blocks as registers hold, 70 to 128 KiB of rows on a multiprocessor of 256 KiB
// of registers: while one waits for its loads or its barrier, others load and store. The hardware
// hands out rows, so that multiprocessors with a larger share of the bandwidth get more of them.
// Determinism: places and merge orders follow from the row's length; no atomics.

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

// Blocks of a multiprocessor for which the compiler reserves registers: as many as it can without
// spilling, which costs more than it gains. The plan counts with the registers that this leaves the
// leanest kernels, those of elements' gamma and beta (PlanBlock).
template <typename T, bool kAligned, typename Params>
constexpr int WantedBlocks(int vectors, int threads) {
  if (vectors != kBlockFewVectors) {
    return vectors == kBlockManyVectors || !std::is_same_v<Params, GeneralParams> ? 1408 / threads
                                                                                  : 1;
  }
  if (std::is_same_v<Params, GeneralParams>) return 4;
  if (kIsAhead<Params>) return 2;
  constexpr bool kFewRegisters =
      std::is_same_v<Params, ElementParams<T, false>> || std::is_same_v<Params, SampleParams<>>;
  return kFewRegisters ? 6 : 5;
}

// Rows of samples are whole vectors; at other addresses, which are rare, they move by elements.
template <typename T, bool kAligned, typename Params, int G>
using TileOf = std::conditional_t<std::is_same_v<Params, SampleParams<>>,
                                  VectorTile<T, G, kAligned>, RegisterTile<T, kAligned, G>>;

// A warp's sums.
template <typename T>
using Partial =
    std::conditional_t<kSharedReference<T>, ReferenceSums<Accumulator<T>>, Moments<Accumulator<T>>>;

template <typename T, typename Tile, int G>
__device__ Partial<T> SumRunOfWarp(const Tile& held, Vector (&vectors)[G], int elements,
                                   bool centered) {
  const auto count = static_cast<Accumulator<T>>(elements);
  if constexpr (kSharedReference<T>) {
    Partial<T> run = AddLanes(held.SumTogether(vectors, centered), kLanes, centered);
    run.count = count;
    return run;
  } else {
    return MergeLanes(held.Sum(vectors, centered), count, kLanes, centered);
  }
}

template <typename T, bool kAligned, typename Params, int G, int kThreads, Samples kSamples>
__global__ void __launch_bounds__(kThreads,
                                  MinBlocks(WantedBlocks<T, kAligned, Params>(G, kThreads),
                                            kThreads))
    BlockRows(const __grid_constant__ RowBatch batch) {
  using A = Accumulator<T>;
  constexpr int kWarps = kThreads / kLanes;
  constexpr int kMergeLanes = kWarps <= 8 ? 8 : kWarps <= 16 ? 16 : 32;
  constexpr int kRunBytes = G * kLanes * kVectorBytes;
  __shared__ Partial<T> partials[kWarps];
  const int lane = static_cast<int>(threadIdx.x % kLanes);
  // Values derived from the warp's number would take more registers in GeneralParams.
  constexpr bool kOfWarp = !std::is_same_v<Params, GeneralParams>;
  const std::uint32_t number = threadIdx.x / kLanes;
  const int warp = static_cast<int>(kOfWarp ? OfWarp(number) : number);
  const int begin = warp * kRunBytes;
  const Row row = FindRow<kSamples>(batch, blockIdx.x);
  const int row_bytes = static_cast<int>(row.bytes);
  const int left = ClampToRun(row_bytes - begin, kRunBytes);
  const int bytes = min(left, kRunBytes);

  Vector vectors[G];
  const TileOf<T, kAligned, Params, G> held(row, begin, left, lane, kLanes);
  AwaitPreviousKernel();
  if constexpr (kAligned) LetNextKernelBeginEarly<true>();
  held.Load(vectors);
  const auto params = held.Ask(Params(), batch);
  const int present = bytes / static_cast<int>(sizeof(T));
  const Partial<T> run = SumRunOfWarp<T>(held, vectors, present, batch.centered);
  if (lane == 0) partials[warp] = run;
  __syncthreads();
  const int elements = row_bytes / static_cast<int>(sizeof(T));
  const int other = lane % kMergeLanes;
  const bool is_warp = other < static_cast<int>(blockDim.x / kLanes);
  const Partial<T> partial = is_warp ? partials[other] : Partial<T>();
  Moments<A> whole;
  if constexpr (kSharedReference<T>) {
    const bool centered = batch.centered;
    const Partial<T> around = centered ? Around(partials[0].reference, partial) : partial;
    const Partial<T> sums = AddLanes(around, kMergeLanes, centered);
    whole = MomentsOfSums(sums.reference, sums.sum, sums.squares, elements, centered);
    // The first warp's reference may be too far from the mean, and so may another's, from which it
    // came.
    const float squares = fmaxf(partial.squares, sums.squares);
    if (__any_sync(kAllLanes, centered && IsFar(squares, whole.m2))) {
      const Partial<T> again =
          AddLanes(held.SumTogetherAgain(vectors, whole.reference), kLanes, true);
      __syncthreads();
      if (lane == 0) partials[warp] = again;
      __syncthreads();
      const Partial<T> all = AddLanes(is_warp ? partials[other] : Partial<T>(), kMergeLanes, true);
      whole = MomentsOfSums(whole.reference, all.sum, all.squares, elements, true);
    }
  } else {
    whole = MergeLanes(partial, static_cast<A>(elements), kMergeLanes, batch.centered);
  }
  const RowScale<A> scale = FinishRow(whole, batch.eps, batch.centered);
  if (threadIdx.x == 0) WriteStatistics(batch, blockIdx.x, scale);
  held.Finish(params, batch, scale, vectors);
}

template <typename T, bool kAligned, int G, int kThreads, typename Params>
cudaError_t Enqueue(const Launch& launch, const RowBatch& batch, Params) {
  const auto threads = static_cast<unsigned>(launch.plan.warps * kLanes);
  const auto enqueue = [&](auto kernel) {
    return LaunchOverlapping(launch.limits, launch.stream, kernel, batch.rows, threads, batch);
  };
  if constexpr (!kIsAhead<Params>) {
    if (batch.has_gaps) {
      return enqueue(BlockRows<T, kAligned, Params, G, kThreads, Samples::kBetweenGaps>);
    }
  }
  return enqueue(BlockRows<T, kAligned, Params, G, kThreads, Samples::kTogether>);
}

}  // namespace

Status LaunchBlockRows(const Launch& launch) {
  return ForEachRowBatch(launch, "block rows", [&](auto element, auto aligned, const auto& batch) {
    using T = typename decltype(element)::Type;
    constexpr bool kAligned = decltype(aligned)::value;
    constexpr int kFew = kBlockFewVectors;
    constexpr int kMany = kBlockManyVectors;
    if (launch.plan.warps > kBlockWarps && launch.plan.vectors == kMany) {
      constexpr int kThreads = kBlockMaxWarps * kLanes;
      if constexpr (!std::is_same_v<T, double>) {
        if (AreRowParams(batch)) {
          return Enqueue<T, kAligned, kMany, kThreads>(launch, batch, RowParams());
        }
      }
      return Enqueue<T, kAligned, kMany, kThreads>(launch, batch, GeneralParams());
    }
    const auto enqueue = [&](auto params) {
      if (launch.plan.vectors == kMany) {
        return Enqueue<T, kAligned, kMany, kBlockWarps * kLanes>(launch, batch, params);
      }
      if (launch.plan.vectors == kBlockSomeVectors) {
        return Enqueue<T, kAligned, kBlockSomeVectors, kBlockSomeWarps * kLanes>(launch, batch,
                                                                                 params);
      }
      const std::int64_t warps = std::int64_t{launch.plan.warps} * batch.rows;
      return WithAhead<kAligned>(launch, warps, params, [&](auto chosen) {
        return Enqueue<T, kAligned, kFew, kBlockFewWarps * kLanes>(launch, batch, chosen);
      });
    };
    if constexpr (!std::is_same_v<T, double>) {
      if (IsModulated(launch.spec)) return enqueue(SampleParams<>());
    }
    return WithParams<T>(launch, batch, enqueue);
  });
}

}  // namespace normd::norm::cuda
