// Rows in two passes: rows longer than the device holds on chip, and any row on devices that have
// neither clusters nor co-resident blocks to hold it.
//
// Phases: one block per chunk of 64 KiB takes the chunk's statistics; one block per row merges
// them; one block per chunk scales and stores it, the last chunks first, which the L2 cache may
// still hold. Bytes: each element is read twice and written once, so at best two thirds of a copy's
// speed. Occupancy: 512 threads with 8 vectors (32 registers) of data per lane. Determinism:
// chunks count from the row's begin, and their partials are merged in order.

#include <cuda_runtime.h>

#include "kernels/cuda/device/memory.cuh"
#include "kernels/cuda/device/moments.cuh"
#include "kernels/cuda/dispatch.cuh"
#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/row_batch.cuh"

namespace normd::norm::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kLanes;
constexpr int kVectors = 8;
constexpr int kRunBytes = kVectors * kLanes * kVectorBytes;
constexpr int kChunkBytes = kWarps * kRunBytes;

std::int64_t ChunksPerRow(std::int64_t elements, std::int64_t element_bytes) {
  return (elements * element_bytes + kChunkBytes - 1) / kChunkBytes;
}

// Sums over the block in a fixed order; every thread gets the result.
template <typename A>
__device__ A BlockSum(A value) {
  __shared__ A sums[kWarps];
  __syncthreads();
  value = GroupSum(value, kLanes);
  if (threadIdx.x % kLanes == 0) sums[threadIdx.x / kLanes] = value;
  __syncthreads();
  return GroupSum(threadIdx.x % kLanes < kWarps ? sums[threadIdx.x % kLanes] : A(0), kLanes);
}

// Where a warp's run of a chunk lies in its row.
struct ChunkRun {
  std::uint32_t row;
  std::int64_t begin;  // Bytes.
};

__device__ inline ChunkRun LocateRun(std::uint32_t block, std::uint32_t chunks) {
  const std::uint32_t row = block / chunks;
  const std::int64_t chunk = block - row * chunks;
  return {row, chunk * kChunkBytes + static_cast<int>(threadIdx.x) / kLanes * kRunBytes};
}

template <typename T, bool kAligned>
__global__ void __launch_bounds__(kThreads, 2)
    SumChunks(const __grid_constant__ RowBatch batch, std::uint32_t chunks,
              Moments<Accumulator<T>>* partials) {
  using A = Accumulator<T>;
  __shared__ Moments<A> warps[kWarps];
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const ChunkRun run = LocateRun(blockIdx.x, chunks);
  const Row row = FindRow(batch, run.row);
  const int bytes = ClampToRun(row.bytes - run.begin, kRunBytes);
  const int present = min(bytes, kRunBytes) / static_cast<int>(sizeof(T));

  Vector vectors[kVectors];
  LoadRun<T, kAligned>(row.x + run.begin, bytes, lane, kLanes, vectors);
  const Moments<A> own = SumRun<T, kAligned>(vectors, bytes, lane, kLanes, batch.centered);
  const Moments<A> warp = MergeLanes(own, static_cast<A>(present), kLanes);
  if (lane == 0) warps[threadIdx.x / kLanes] = warp;
  __syncthreads();
  if (threadIdx.x >= kLanes) return;
  const Moments<A> mine = lane < kWarps ? warps[lane] : Moments<A>();
  const Moments<A> chunk = MergeLanes(mine, GroupSum(mine.count, kLanes), kLanes);
  if (lane == 0) partials[blockIdx.x] = chunk;
}

template <typename A>
__global__ void __launch_bounds__(kThreads)
    MergeChunks(std::uint32_t chunks, const Moments<A>* partials, Constant eps,
                RowScale<A>* scales) {
  const Moments<A>* const own = partials + static_cast<std::size_t>(blockIdx.x) * chunks;
  const SetMerge<A> merge(own[0].reference);
  A sum = 0;
  A count = 0;
  for (std::uint32_t i = threadIdx.x; i < chunks; i += kThreads) {
    sum = merge.AddMean(own[i], sum);
    count += own[i].count;
  }
  count = BlockSum(count);
  const A mean = BlockSum(sum) / count;
  A m2 = 0;
  for (std::uint32_t i = threadIdx.x; i < chunks; i += kThreads) m2 += merge.M2(own[i], mean);
  const Moments<A> row = merge.Result(count, mean, BlockSum(m2));
  if (threadIdx.x == 0) scales[blockIdx.x] = FinishRow(row, eps);
}

template <typename T, bool kAligned>
__global__ void __launch_bounds__(kThreads, 2)
    ScaleChunks(const __grid_constant__ RowBatch batch, std::uint32_t chunks,
                const RowScale<Accumulator<T>>* scales) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const ChunkRun run = LocateRun(gridDim.x - 1 - blockIdx.x, chunks);
  const Row row = FindRow(batch, run.row);
  const int bytes = ClampToRun(row.bytes - run.begin, kRunBytes);
  const int present = min(bytes, kRunBytes) / static_cast<int>(sizeof(T));

  Vector vectors[kVectors];
  LoadRun<T, kAligned>(row.x + run.begin, bytes, lane, kLanes, vectors);
  const std::int64_t element = run.begin / static_cast<int>(sizeof(T));
  RunEpilogue<T> epilogue(batch, row, scales[run.row], element, element + present);
  InTurn(vectors, [&](int i, const Vector& vector) {
    const int offset = (i * kLanes + lane) * kVectorBytes;
    return epilogue.Apply(vector, element + offset / static_cast<int>(sizeof(T)),
                          ElementsPresent<T>(bytes, offset));
  });
  StoreRun<T, kAligned>(row.y + run.begin, bytes, lane, kLanes, vectors);
}

template <typename T, bool kAligned>
cudaError_t Enqueue(const Launch& launch, const RowBatch& batch) {
  using A = Accumulator<T>;
  const auto chunks =
      static_cast<std::uint32_t>(ChunksPerRow(batch.segments[0].elements, sizeof(T)));
  const std::uint32_t blocks = batch.rows * chunks;
  auto* const partials = static_cast<Moments<A>*>(launch.scratch);
  auto* const scales = reinterpret_cast<RowScale<A>*>(partials + blocks);
  SumChunks<T, kAligned><<<blocks, kThreads, 0, launch.stream>>>(batch, chunks, partials);
  MergeChunks<A><<<batch.rows, kThreads, 0, launch.stream>>>(chunks, partials, batch.eps, scales);
  ScaleChunks<T, kAligned><<<blocks, kThreads, 0, launch.stream>>>(batch, chunks, scales);
  return cudaGetLastError();
}

}  // namespace

std::size_t SplitScratchBytes(const NormSpec& spec, const Segment* segments, std::size_t count) {
  const bool wide = spec.dtype == DType::kFloat64;
  const std::size_t partial = wide ? sizeof(Moments<double>) : sizeof(Moments<float>);
  const std::size_t scale = wide ? sizeof(RowScale<double>) : sizeof(RowScale<float>);
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t chunks = ChunksPerRow(RowLength(spec, segments[i].spatial),
                                             static_cast<std::int64_t>(SizeOf(spec.dtype)));
    const auto rows = static_cast<std::size_t>(segments[i].samples * spec.groups);
    bytes = std::max(bytes, rows * (static_cast<std::size_t>(chunks) * partial + scale));
  }
  return bytes;
}

Status LaunchSplitRows(const Launch& launch) {
  // One segment at a time: its chunks are numbered in the grid, and the next reuses the scratch.
  return ForEachRowBatch(
      launch, "split rows",
      [&](auto element, auto aligned, const RowBatch& batch) {
        return Enqueue<typename decltype(element)::Type, decltype(aligned)::value>(launch, batch);
      },
      1);
}

}  // namespace normd::norm::cuda
