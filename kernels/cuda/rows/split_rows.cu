// Rows in two passes: rows longer than the device holds on chip, and all rows on devices that have
// neither clusters nor co-resident blocks to hold them.
//
// Phases: one block per chunk of 64 KiB takes the chunk's statistics; one block per row merges
// them; one block per chunk scales and stores it, the last chunks first, which the L2 cache may
// still hold. If rows share gamma and beta element by element, blocks are persistent, and each
// scales a range of elements in all rows, the last rows first, with their parameters in shared
// memory.
// Bytes: each element is read twice and written once, so at best two thirds of a copy's speed;
// parameters are read about once.
// Occupancy: 512 threads with 8 vectors (32 registers) of data per lane; three blocks with 4
// vectors, or 2 beside wider parameters, and 64 KiB of these.
// Determinism: chunks count from the row's begin, and their partials are merged in order.

#include <cuda_runtime.h>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/device/memory.cuh"
#include "kernels/cuda/device/moments.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/dispatch.cuh"
#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/row_batch.cuh"
#include "kernels/cuda/rows/vector_tile.cuh"

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

// Merges the block's values in a fixed order; every thread gets the result. of_warp(value) merges
// those of a warp; zeros do not count.
template <typename Value, typename OfWarp>
__device__ Value MergeOfBlock(Value value, OfWarp of_warp) {
  __shared__ Value warps[kWarps];
  __syncthreads();
  value = of_warp(value);
  if (threadIdx.x % kLanes == 0) warps[threadIdx.x / kLanes] = value;
  __syncthreads();
  return of_warp(threadIdx.x % kLanes < kWarps ? warps[threadIdx.x % kLanes] : Value(0));
}
template <typename A>
__device__ A BlockSum(A value) {
  return MergeOfBlock(value, [](A own) { return GroupSum(own, kLanes); });
}

// The place of a warp's run of a chunk in its row.
struct ChunkRun {
  std::uint32_t row;
  std::int64_t begin;  // Bytes.
};

__device__ inline ChunkRun LocateRun(std::uint32_t block, std::uint32_t chunks) {
  const std::uint32_t row = block / chunks;
  const std::int64_t chunk = block - row * chunks;
  return {row, chunk * kChunkBytes + static_cast<int>(threadIdx.x) / kLanes * kRunBytes};
}

template <typename T, bool kAligned, RowSums kSums>
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
  AwaitPreviousKernel();

  Vector vectors[kVectors];
  LoadRun<T, kAligned>(row.x + run.begin, bytes, lane, kLanes, vectors);
  const auto statistics = StatisticsOf<kSums>(batch);
  const Moments<A> own = SumRun<T, kAligned>(vectors, bytes, lane, kLanes, statistics);
  const Moments<A> warp = MergeStatistics(statistics, own, static_cast<A>(present), kLanes);
  if (lane == 0) warps[threadIdx.x / kLanes] = warp;
  __syncthreads();
  if (threadIdx.x >= kLanes) return;
  const Moments<A> mine = lane < kWarps ? warps[lane] : Moments<A>();
  const Moments<A> chunk = MergeStatistics(statistics, mine, GroupSum(mine.count, kLanes), kLanes);
  if (lane == 0) partials[blockIdx.x] = chunk;
}

// The scale of the block's row, by its first thread.
template <typename A>
__device__ void Finish(const RowBatch& batch, const Moments<A>& row, RowScale<A>* scales) {
  if (threadIdx.x > 0) return;
  const RowScale<A> scale = FinishStatistics(batch.norm, row, batch.eps);
  scales[blockIdx.x] = scale;
  WriteStatistics(batch, blockIdx.x, scale);
}

template <typename A>
__global__ void __launch_bounds__(kThreads)
    MergeChunks(const __grid_constant__ RowBatch batch, std::uint32_t chunks,
                const Moments<A>* partials, RowScale<A>* scales) {
  const Moments<A>* const own = partials + static_cast<std::size_t>(blockIdx.x) * chunks;
  LetNextKernelBegin();  // ScaleChunks loads its rows in the meantime.
  AwaitPreviousKernel();
  if (batch.norm == Statistics::kLargestAbsolute) {
    MagnitudeBits<A> largest = 0;
    for (std::uint32_t i = threadIdx.x; i < chunks; i += kThreads) {
      largest = max(largest, Magnitude(own[i].m2));
    }
    Moments<A> row;
    row.m2 = FromMagnitude(
        MergeOfBlock(largest, [](MagnitudeBits<A> bits) { return LargestOfLanes(bits, kLanes); }));
    Finish(batch, row, scales);
    return;
  }
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
  Finish(batch, row, scales);
}

// Params: RowParams, without an activation, or GeneralParams.
template <typename T, bool kAligned, typename Params>
__global__ void __launch_bounds__(kThreads, 2)
    ScaleChunks(const __grid_constant__ RowBatch batch, std::uint32_t chunks,
                const RowScale<Accumulator<T>>* scales) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const ChunkRun run = LocateRun(gridDim.x - 1 - blockIdx.x, chunks);
  const Row row = FindRow(batch, run.row);
  const int bytes = ClampToRun(row.bytes - run.begin, kRunBytes);
  const int present = min(bytes, kRunBytes) / static_cast<int>(sizeof(T));

  // SumChunks has read x, so it is complete before MergeChunks begins.
  Vector vectors[kVectors];
  LoadRun<T, kAligned>(row.x + run.begin, bytes, lane, kLanes, vectors);
  AwaitPreviousKernel();
  const RowScale<Accumulator<T>> scale = scales[run.row];
  if constexpr (std::is_same_v<Params, RowParams>) {
    const RowResult<T> result(batch, RowParamValues<Accumulator<T>>(batch, row), scale);
#pragma unroll
    for (Vector& vector : vectors) vector = result.template Of<Activation::kNone>(vector);
  } else {
    const std::int64_t element = run.begin / static_cast<int>(sizeof(T));
    RunEpilogue<T> epilogue(batch, row, scale, element, element + present);
    InTurn(vectors, [&](int i, const Vector& vector) {
      const int offset = (i * kLanes + lane) * kVectorBytes;
      return epilogue.Apply(vector, element + offset / static_cast<int>(sizeof(T)),
                            ElementsPresent<T>(bytes, offset));
    });
  }
  StoreRun<T, kAligned>(row.y + run.begin, bytes, lane, kLanes, vectors);
}

// The range of elements that a block of ScaleColumns takes of each row, and its gamma and beta, of
// type P, in shared memory. A thread reads there only what it wrote itself.
template <typename T, typename P>
struct Columns {
  static constexpr int kCount = kPerVector<T>;
  static constexpr int kParts = kCount / kPerVector<P>;  // Vectors of P for one of T.
  static constexpr int kHeld = 4 / kParts;               // Vectors of T per thread.
  static constexpr int kBytes = kHeld * kThreads * kVectorBytes;
  static constexpr int kArrayVectors = kHeld * kParts * kThreads;
  static constexpr int kSharedBytes = 2 * kArrayVectors * kVectorBytes;
  static constexpr int kBlocks = kHeld * kCount > 16 ? 2 : 3;  // Per multiprocessor.

  // The bytes from the range's begin to the thread's vector i.
  __device__ static int Offset(int i) {
    return (i * kThreads + static_cast<int>(threadIdx.x)) * kVectorBytes;
  }

  // An absent beta is loaded as zeros. `bytes` of the range exist; `first` is its first element's
  // channel.
  __device__ static void Load(const RowBatch& batch, std::int64_t first, int bytes,
                              Vector* memory) {
    const P* const gamma = static_cast<const P*>(batch.gamma.data) + first;
    const P* const beta = static_cast<const P*>(batch.beta.data) + first;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (Offset(i) >= bytes) continue;
      const int element = Offset(i) / static_cast<int>(sizeof(T));
#pragma unroll
      for (int k = 0; k < kParts; ++k) {
        Vector* const to = memory + Place(i, k);
        CopyToShared(SharedAddress(to), gamma + element + k * kPerVector<P>);
        if (batch.beta.data != nullptr) {
          CopyToShared(SharedAddress(to + kArrayVectors), beta + element + k * kPerVector<P>);
        } else {
          to[kArrayVectors] = make_uint4(0, 0, 0, 0);
        }
      }
    }
    AwaitCopies();
  }
  __device__ static void Read(const Vector* memory, int i, Accumulator<T> (&gamma)[kCount],
                              Accumulator<T> (&beta)[kCount]) {
#pragma unroll
    for (int k = 0; k < kParts; ++k) {
      Widened(memory[Place(i, k)], k, gamma);
      Widened(memory[Place(i, k) + kArrayVectors], k, beta);
    }
  }

 private:
  __device__ static int Place(int i, int part) {
    return (i * kParts + part) * kThreads + static_cast<int>(threadIdx.x);
  }
  __device__ static void Widened(const Vector& vector, int part, Accumulator<T> (&values)[kCount]) {
    Accumulator<P> own[kPerVector<P>];
    Unpack<P>(vector, own);
#pragma unroll
    for (int j = 0; j < kPerVector<P>; ++j) values[part * kPerVector<P> + j] = own[j];
  }
};

// One turn of ScaleColumns: a range of a row. Ranges with the same parameters follow one another,
// from the last row to the first.
struct ColumnTurn {
  std::uint32_t range;  // Range of the row.
  std::uint32_t group;
  std::uint32_t sample;
};

__device__ inline ColumnTurn FindTurn(std::uint64_t index, std::uint32_t ranges,
                                      std::uint32_t samples) {
  const auto column = static_cast<std::uint32_t>(index / samples);
  const std::uint32_t group = column / ranges;
  return {column - group * ranges, group,
          samples - 1 - static_cast<std::uint32_t>(index - std::uint64_t{column} * samples)};
}

template <typename T, typename P, bool kActivated>
__global__ void __launch_bounds__(kThreads, Columns<T, P>::kBlocks)
    ScaleColumns(const __grid_constant__ RowBatch batch, std::uint32_t ranges,
                 const RowScale<Accumulator<T>>* scales) {
  using A = Accumulator<T>;
  using Own = Columns<T, P>;
  extern __shared__ Vector memory[];
  const std::uint32_t groups = batch.groups.value();
  const std::uint32_t samples = batch.rows / groups;
  const std::uint64_t turns = std::uint64_t{batch.rows} * ranges;
  const std::uint64_t begin = turns * blockIdx.x / gridDim.x;
  const std::uint64_t end = turns * (blockIdx.x + 1) / gridDim.x;
  ColumnTurn turn = FindTurn(begin, ranges, samples);
  bool loaded = false;
#pragma unroll 1
  for (std::uint64_t left = end - begin; left > 0; --left) {
    const std::uint32_t number = turn.sample * groups + turn.group;
    const Row row = RowOf(batch, batch.segments[0], number);
    const std::int64_t from = std::int64_t{turn.range} * Own::kBytes;
    const int bytes = ClampToRun(row.bytes - from, Own::kBytes);
    Vector vectors[Own::kHeld];
#pragma unroll
    for (int i = 0; i < Own::kHeld; ++i) {
      vectors[i] = LoadVectorIf(Own::Offset(i) < bytes, row.x + from + Own::Offset(i));
    }
    const RunScale<T> scale(scales[number]);
    if (!loaded) {
      Own::Load(batch, row.first_channel + from / static_cast<int>(sizeof(T)), bytes, memory);
    }
    WithActivationIf<kActivated>(batch.activation, [&](auto activation) {
#pragma unroll
      for (int i = 0; i < Own::kHeld; ++i) {
        A values[Own::kCount], gamma[Own::kCount], beta[Own::kCount];
        Unpack<T>(vectors[i], values);
        Own::Read(memory, i, gamma, beta);
#pragma unroll
        for (int j = 0; j < Own::kCount; ++j) {
          values[j] = Activate<T, decltype(activation)::value>(
              scale.ByElement(values[j], gamma[j], beta[j]), batch.leaky_slope.As<A>());
        }
        StoreVectorIf(Own::Offset(i) < bytes, row.y + from + Own::Offset(i), Pack<T>(values));
      }
    });
    loaded = turn.sample > 0;
    if (loaded) {
      --turn.sample;
    } else {
      turn = FindTurn(end - left + 1, ranges, samples);
    }
  }
}

template <typename T, typename P, bool kActivated>
cudaError_t EnqueueColumns(const Launch& launch, const RowBatch& batch,
                           const RowScale<Accumulator<T>>* scales) {
  using Own = Columns<T, P>;
  const auto kernel = ScaleColumns<T, P, kActivated>;
  if (const cudaError_t error = AllowSharedBytes(kernel, launch.limits); error != cudaSuccess) {
    return error;
  }
  const auto ranges =
      static_cast<std::uint32_t>((batch.segments[0].row_bytes + Own::kBytes - 1) / Own::kBytes);
  const std::uint64_t turns = std::uint64_t{batch.rows} * ranges;
  const auto blocks = static_cast<unsigned>(std::min<std::uint64_t>(
      turns, static_cast<std::uint64_t>(Own::kBlocks * launch.limits.multiprocessors)));
  kernel<<<blocks, kThreads, Own::kSharedBytes, launch.stream>>>(batch, ranges, scales);
  return cudaSuccess;
}

// Scales all chunks of the batch.
template <typename T, bool kAligned>
cudaError_t EnqueueScaling(const Launch& launch, const RowBatch& batch, std::uint32_t chunks,
                           const RowScale<Accumulator<T>>* scales) {
  if constexpr (kAligned && !std::is_same_v<T, double>) {
    const auto columns = [&](auto param) {
      using P = typename decltype(param)::Type;
      return launch.spec.activation == Activation::kNone
                 ? EnqueueColumns<T, P, false>(launch, batch, scales)
                 : EnqueueColumns<T, P, true>(launch, batch, scales);
    };
    const bool room = launch.limits.compute_capability >= 80 &&
                      launch.limits.shared_bytes_per_block >=
                          kReservedSharedBytes + std::size_t{Columns<T, T>::kSharedBytes};
    if (room && AreElementParams<T>(launch, batch)) return columns(ElementType<T>());
    if constexpr (sizeof(T) == 2) {
      if (room && AreElementParams<float>(launch, batch)) return columns(ElementType<float>());
    }
  }
  auto scale_chunks = ScaleChunks<T, kAligned, GeneralParams>;
  if constexpr (kAligned && !std::is_same_v<T, double>) {
    if (AreRowParams(batch) && launch.spec.activation == Activation::kNone) {
      scale_chunks = ScaleChunks<T, true, RowParams>;
    }
  }
  return LaunchOverlapping(launch.limits, launch.stream, scale_chunks, batch.rows * chunks,
                           kThreads, batch, chunks, scales);
}

template <typename T, bool kAligned>
cudaError_t Enqueue(const Launch& launch, const RowBatch& batch) {
  using A = Accumulator<T>;
  const auto chunks =
      static_cast<std::uint32_t>(ChunksPerRow(batch.segments[0].elements, sizeof(T)));
  const std::uint32_t blocks = batch.rows * chunks;
  auto* const partials = static_cast<Moments<A>*>(launch.scratch);
  auto* const scales = reinterpret_cast<RowScale<A>*>(partials + blocks);
  const auto sum_chunks = IsNorm(launch) ? SumChunks<T, kAligned, RowSums::kNorms>
                                         : SumChunks<T, kAligned, RowSums::kMoments>;
  cudaError_t error = LaunchOverlapping(launch.limits, launch.stream, sum_chunks, blocks, kThreads,
                                        batch, chunks, partials);
  if (error != cudaSuccess) return error;
  error = LaunchOverlapping(launch.limits, launch.stream, MergeChunks<A>, batch.rows, kThreads,
                            batch, chunks, partials, scales);
  if (error != cudaSuccess) return error;
  error = EnqueueScaling<T, kAligned>(launch, batch, chunks, scales);
  const cudaError_t last = cudaGetLastError();
  return error != cudaSuccess ? error : last;
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
  // One segment at a time: the grid numbers its chunks, and the next segment reuses the scratch.
  return ForEachRowBatch(
      launch, "split rows",
      [&](auto element, auto aligned, const RowBatch& batch) {
        return Enqueue<typename decltype(element)::Type, decltype(aligned)::value>(launch, batch);
      },
      1);
}

}  // namespace normd::norm::cuda
