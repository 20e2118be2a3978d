// Channels-last rows that do not fit on the chip: two passes over memory.
//
// Phases: blocks sum tiles and leave one partial per tile and group in the scratch memory; tiles
// are as wide as a position, but no wider than a block's threads. A block per row merges the row's
// partials in the order of its tiles. Blocks scale the tiles, the last one first, since the cache
// still holds the end.
// Bytes: each element is read twice and written once, except for what the second pass finds in the
// cache.
// Occupancy: three blocks of 256 threads, each with eight vectors a thread in flight.
// Determinism: fixed places, one writer per partial, a fixed merge order; no atomics.

#include <cuda_runtime.h>

#include "kernels/cuda/channels_last/channels_last.h"
#include "kernels/cuda/channels_last/tiles.cuh"
#include "kernels/cuda/dispatch.cuh"

namespace normd::norm::cuda {
namespace {

constexpr int kMinBlocks = 3;  // Per multiprocessor.
constexpr int kUnroll = 8;     // Vectors of a thread in flight at once.
// Scratch bytes are at most this part of the tensor's, a little more if a tile ends early.
constexpr std::int64_t kScratchRatio = 64;
constexpr int kVectorsPerSum = 16;  // Longer columns are merged from sums of this many vectors.
constexpr std::int64_t kMostTiles = 4096;  // One block merges them.
constexpr int kMergeThreads = 256;
constexpr std::int64_t kMostMergeBlocks = 1 << 20;

// The layout of a launch's partials in the scratch memory: [tile][slot] and [sample][group].
struct SplitLayout {
  int groups;
  std::int64_t group_channels;
  int slots;  // Groups that a tile's columns can touch.
  bool centered;
  Constant eps;
  Constant leaky_slope;
  Activation activation;
};

// The groups with channels in a column block: [first, last].
struct GroupRange {
  std::int64_t first;
  std::int64_t last;
};

__host__ __device__ inline GroupRange GroupsOf(std::int64_t first_channel,
                                               std::int64_t block_channels, std::int64_t channels,
                                               std::int64_t group_channels) {
  const std::int64_t end = first_channel + block_channels;
  return {first_channel / group_channels, ((end < channels ? end : channels) - 1) / group_channels};
}

// Whether a thread's vectors are whole and aligned, so that a load and a store move them.
template <typename T>
__device__ inline bool IsWhole(const TileColumn& column) {
  return column.present == kPerVector<T> && min(column.x_width, column.y_width) == kVectorBytes;
}

// Loads vectors [begin, begin + kUnroll) of a thread's column, if they exist.
__device__ inline void LoadWhole(const TileColumn& column, int begin, int end,
                                 Vector (&vectors)[kUnroll]) {
  const char* from = column.x + begin * column.step;
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) {
    if (begin + i < end) vectors[i] = LoadVector(from);
    from += column.step;
  }
}

// Sums vectors [begin, end) of a thread's column, which includes the first, as SumColumn does.
template <typename T, int kParts>
__device__ inline ColumnSums<T, kParts> SumWhole(const TileColumn& column, int begin, int end,
                                                 bool centered, int boundary) {
  Vector vectors[kUnroll];
  LoadWhole(column, begin, end, vectors);
  Vector second = vectors[0];
  if (begin + 1 < end) second = vectors[1];
  ColumnSums<T, kParts> sums(centered, boundary, vectors[0], second);
  for (;;) {
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      if (begin + i < end) sums.Add(vectors[i]);
    }
    begin += kUnroll;
    if (begin >= end) return sums;
    LoadWhole(column, begin, end, vectors);
  }
}

// The same, for any columns.
template <typename T, int kParts>
__device__ inline ColumnSums<T, kParts> SumAny(const TileColumn& column, int begin, int end,
                                               bool centered, int boundary) {
  const auto load = [&](int i) {
    return LoadColumn<T>(column.x + i * column.step, column.present, column.x_width);
  };
  ColumnSums<T, kParts> sums(centered, boundary, load(begin), load(min(begin + 1, end - 1)));
#pragma unroll 1
  for (int i = begin; i < end; ++i) sums.Add(load(i));
  return sums;
}

// Sums a thread's part of a tile into kParts moments in shared memory, where they take no
// registers. Channels before `boundary` belong to the tile's first group.
template <typename T, int kParts>
__device__ inline void SumColumn(const TileColumn& column, bool centered, int boundary,
                                 Moments<Accumulator<T>>* total) {
  const auto count = static_cast<int>(column.count);
  const bool whole = IsWhole<T>(column);
#pragma unroll
  for (int i = 0; i < kParts; ++i) total[i] = Moments<Accumulator<T>>();
  for (int begin = 0; begin < count; begin += kVectorsPerSum) {
    const int end = min(begin + kVectorsPerSum, count);
    ColumnSums<T, kParts> sums = whole ? SumWhole<T, kParts>(column, begin, end, centered, boundary)
                                       : SumAny<T, kParts>(column, begin, end, centered, boundary);
    Moments<Accumulator<T>> partials[kParts];
    sums.Finish(end - begin, partials);
#pragma unroll
    for (int i = 0; i < kParts; ++i) total[i] = Merge(total[i], partials[i]);
  }
}

template <typename T, int kParts>
__global__ void __launch_bounds__(kTileThreads, kMinBlocks)
    SumTiles(const __grid_constant__ TileBatch batch, const SplitLayout layout,
             Moments<Accumulator<T>>* partials) {
  using A = Accumulator<T>;
  __shared__ Moments<A> threads[kTileThreads * kParts];
  const TileColumn column = FindTileColumn<T>(batch, blockIdx.x);
  const auto left_in_group =
      static_cast<int>(layout.group_channels - column.first_channel % layout.group_channels);
  SumColumn<T, kParts>(column, layout.centered, left_in_group, threads + threadIdx.x * kParts);
  __syncthreads();

  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  const std::int64_t block_channels = std::int64_t{batch.columns} * kPerVector<T>;
  const std::int64_t first_channel =
      static_cast<std::int64_t>(blockIdx.x) % batch.column_blocks * block_channels;
  const std::int64_t end_channel = min(first_channel + block_channels, batch.channels);
  const GroupRange range =
      GroupsOf(first_channel, block_channels, batch.channels, layout.group_channels);
  for (std::int64_t group = range.first + warp; group <= range.last;
       group += kTileThreads / kLanes) {
    const GroupParts<T, kParts> parts(
        static_cast<int>(max(group * layout.group_channels, first_channel) - first_channel),
        static_cast<int>(min((group + 1) * layout.group_channels, end_channel) - first_channel));
    const Moments<A> merged = MergeRows(threads, parts, batch.rows, batch.columns * kParts);
    if (lane == 0) {
      partials[static_cast<std::int64_t>(blockIdx.x) * layout.slots + (group - range.first)] =
          merged;
    }
  }
}

// Where a row's partials lie: those of `chunks` tiles along its sample, in `blocks` column blocks.
struct RowParts {
  std::int64_t first_tile;
  std::int64_t first_block;
  std::int64_t blocks;
  std::int64_t chunks;
  std::int64_t positions;  // In the sample.
};

__device__ inline RowParts FindRowParts(const TileBatch& batch, const SplitLayout& layout,
                                        int vector_channels, std::uint32_t sample,
                                        std::int64_t group) {
  int index = 0;
  while (sample >= batch.segments[index].end_sample) ++index;
  const TileSegment& segment = batch.segments[index];
  const std::uint32_t first_sample = index == 0 ? 0 : batch.segments[index - 1].end_sample;
  const std::uint32_t first_tile = index == 0 ? 0 : batch.segments[index - 1].end_tile;
  const std::int64_t tiles_per_sample = segment.tiles_per_sample.value();
  const std::int64_t block_channels = std::int64_t{batch.columns} * vector_channels;
  RowParts parts;
  parts.first_tile = first_tile + (sample - first_sample) * tiles_per_sample;
  parts.first_block = group * layout.group_channels / block_channels;
  parts.blocks = ((group + 1) * layout.group_channels - 1) / block_channels - parts.first_block + 1;
  parts.chunks = tiles_per_sample / batch.column_blocks;
  parts.positions = segment.positions;
  return parts;
}

// A thread's share of a row's merge: every kMergeThreads-th of its partials.
template <typename A>
__device__ inline Moments<A> MergeShare(const TileBatch& batch, const SplitLayout& layout,
                                        int vector_channels, std::int64_t group,
                                        const RowParts& parts, const Moments<A>* partials) {
  const std::int64_t block_channels = std::int64_t{batch.columns} * vector_channels;
  Moments<A> merged;
#pragma unroll 4
  for (std::int64_t i = threadIdx.x; i < parts.chunks * parts.blocks; i += kMergeThreads) {
    const std::int64_t chunk = i / parts.blocks;
    const std::int64_t block = parts.first_block + (i - chunk * parts.blocks);
    const GroupRange range =
        GroupsOf(block * block_channels, block_channels, batch.channels, layout.group_channels);
    const std::int64_t tile = parts.first_tile + chunk * batch.column_blocks + block;
    merged = Merge(merged, partials[tile * layout.slots + (group - range.first)]);
  }
  return merged;
}

// A block merges the tiles of a row: each thread its share, then warps, then one.
template <typename A>
__global__ void __launch_bounds__(kMergeThreads)
    MergeTiles(const __grid_constant__ TileBatch batch, const SplitLayout layout,
               int vector_channels, const Moments<A>* partials, RowScale<A>* scales) {
  constexpr int kWarps = kMergeThreads / kLanes;
  __shared__ Moments<A> warps[kWarps];
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  const std::int64_t rows = std::int64_t{batch.samples} * layout.groups;
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const std::int64_t sample = row / layout.groups;
    const std::int64_t group = row - sample * layout.groups;
    const RowParts parts =
        FindRowParts(batch, layout, vector_channels, static_cast<std::uint32_t>(sample), group);
    Moments<A> merged = MergeShare(batch, layout, vector_channels, group, parts, partials);
    merged = MergeLanes(merged, GroupSum(merged.count, kLanes), kLanes);
    if (lane == 0) warps[warp] = merged;
    __syncthreads();
    if (warp == 0) {
      merged = lane < kWarps ? warps[lane] : Moments<A>();
      merged = MergeLanes(merged, static_cast<A>(layout.group_channels * parts.positions), kLanes);
      if (lane == 0) scales[row] = FinishRow(merged, layout.eps, layout.centered);
    }
    __syncthreads();
  }
}

// Scales and stores a column of whole vectors. `vectors` holds the first of them.
template <Activation kActivation, typename T, int kParts>
__device__ inline void ScaleWhole(const TileColumn& column, const ColumnScale<T, kParts>& scale,
                                  Accumulator<T> leaky_slope, Vector (&vectors)[kUnroll]) {
  const auto count = static_cast<int>(column.count);
  const char* from = column.x + kUnroll * column.step;
  char* to = column.y;
  for (int at = 0; at < count; at += kUnroll) {
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      if (at + i < count) {
        __stcs(reinterpret_cast<uint4*>(to),
               scale.template Apply<kActivation>(vectors[i], leaky_slope));
      }
      if (at + i + kUnroll < count) vectors[i] = LoadVector(from);
      from += column.step;
      to += column.step;
    }
  }
}

template <typename T, int kParts>
__global__ void __launch_bounds__(kTileThreads, kMinBlocks)
    ScaleTiles(const __grid_constant__ TileBatch batch, const SplitLayout layout,
               const __grid_constant__ NormParams params, const RowScale<Accumulator<T>>* scales) {
  using A = Accumulator<T>;
  const TileColumn column = FindTileColumn<T>(batch, gridDim.x - 1 - blockIdx.x);
  if (column.count == 0) return;
  const bool whole = IsWhole<T>(column);
  Vector vectors[kUnroll];
  if (whole) LoadWhole(column, 0, static_cast<int>(column.count), vectors);
  ColumnScale<T, kParts> scale;
  LoadParams(params.gamma, column.first_channel, column.present, A(1), scale.factor);
  LoadParams(params.beta, column.first_channel, column.present, A(0), scale.offset);
  const RowScale<A>* const rows = scales + static_cast<std::int64_t>(column.sample) * layout.groups;
  std::int64_t group = column.first_channel / layout.group_channels;
  std::int64_t left = (group + 1) * layout.group_channels - column.first_channel;
  RowScale<A> row = rows[group];
#pragma unroll
  for (int i = 0; i < kPerVector<T>; ++i) {
    if (i >= column.present) continue;
    scale.Set(i, row);
    if (kParts > 1 && --left == 0 && i + 1 < column.present) {
      row = rows[++group];
      left = layout.group_channels;
    }
  }
  const A leaky_slope = layout.leaky_slope.As<A>();
  if (whole) {
    WithActivation(layout.activation, [&](auto activation) {
      ScaleWhole<decltype(activation)::value>(column, scale, leaky_slope, vectors);
    });
    return;
  }
#pragma unroll 1
  for (int i = 0; i < column.count; ++i) {
    const Vector vector = LoadColumn<T>(column.x + i * column.step, column.present, column.x_width);
    StoreColumn<T>(column.y + i * column.step, scale.Apply(vector, layout.activation, leaky_slope),
                   column.present, column.y_width);
  }
}

// As PartsOfColumn, but 2 if two groups make up a column.
constexpr int PartsOfTile(std::int64_t group_channels, std::int64_t count) {
  return 2 * group_channels == count ? 2 : PartsOfColumn(group_channels, count);
}

// The part of the cut that depends on the spec alone.
struct SplitCut {
  explicit SplitCut(const NormSpec& spec) : batch(EmptyTileBatch(spec, kTileThreads)) {
    const auto element = static_cast<std::int64_t>(SizeOf(spec.dtype));
    group_channels = spec.channels / spec.groups;
    parts = PartsOfTile(group_channels, kVectorBytes / element);
    moments_bytes =
        spec.dtype == DType::kFloat64 ? sizeof(Moments<double>) : sizeof(Moments<float>);
    scale_bytes =
        spec.dtype == DType::kFloat64 ? sizeof(RowScale<double>) : sizeof(RowScale<float>);
    const std::int64_t tile_channels = batch.columns * (kVectorBytes / element);
    slots = std::min(spec.groups, (tile_channels - 1) / group_channels + 2);
    const std::int64_t for_scratch =
        kScratchRatio * slots * moments_bytes / (batch.columns * kVectorBytes);
    wanted_positions = std::max(std::int64_t{batch.rows} * kVectorsPerSum, for_scratch);
  }

  // Tiles of about the same size: at least wanted_positions each if the sample has enough, and at
  // most kMostTiles.
  std::int64_t TilePositions(std::int64_t spatial) const {
    const std::int64_t tiles = std::clamp<std::int64_t>(spatial / wanted_positions, 1, kMostTiles);
    return (spatial + tiles - 1) / tiles;
  }

  TileBatch batch;
  std::int64_t group_channels;
  int parts;  // ColumnSums' kParts.
  std::int64_t moments_bytes;
  std::int64_t scale_bytes;
  std::int64_t slots;
  std::int64_t wanted_positions;
};

template <typename T, int kParts>
cudaError_t Enqueue(const Launch& launch, const SplitCut& cut, const TileBatch& batch,
                    std::int64_t all_samples) {
  using A = Accumulator<T>;
  const SplitLayout layout = {static_cast<int>(launch.spec.groups),
                              cut.group_channels,
                              static_cast<int>(cut.slots),
                              launch.spec.statistics == Statistics::kMeanVariance,
                              Constant(launch.spec.eps),
                              Constant(launch.spec.leaky_slope),
                              launch.spec.activation};
  auto* const scales = static_cast<RowScale<A>*>(launch.scratch);
  const std::int64_t scales_bytes = all_samples * launch.spec.groups * cut.scale_bytes;
  auto* const partials = reinterpret_cast<Moments<A>*>(static_cast<char*>(launch.scratch) +
                                                       (scales_bytes + 255) / 256 * 256);
  SumTiles<T, kParts><<<batch.tiles, kTileThreads, 0, launch.stream>>>(batch, layout, partials);
  const std::int64_t rows = std::int64_t{batch.samples} * launch.spec.groups;
  const auto merge_blocks = static_cast<unsigned>(std::min(rows, kMostMergeBlocks));
  MergeTiles<A><<<merge_blocks, kMergeThreads, 0, launch.stream>>>(batch, layout, kPerVector<T>,
                                                                   partials, scales);
  ScaleTiles<T, kParts>
      <<<batch.tiles, kTileThreads, 0, launch.stream>>>(batch, layout, launch.params, scales);
  return cudaGetLastError();
}

std::int64_t CountSamples(const Segment* segments, std::size_t count) {
  std::int64_t samples = 0;
  for (std::size_t i = 0; i < count; ++i) samples += segments[i].samples;
  return samples;
}

}  // namespace

Status LaunchChannelsLastSplit(const Launch& launch) {
  const SplitCut cut(launch.spec);
  TileBatch batch = cut.batch;
  const std::int64_t samples = CountSamples(launch.segments, launch.count);
  return ForEachTileBatch(
      launch.spec, launch.segments, launch.count, "channels-last split", &batch,
      [&](const Segment& segment) { return cut.TilePositions(segment.spatial); },
      [&]() {
        return WithElementType(launch.spec.dtype, [&](auto element) {
          using T = typename decltype(element)::Type;
          if (cut.parts == 1) return Enqueue<T, 1>(launch, cut, batch, samples);
          if (cut.parts == 2) return Enqueue<T, 2>(launch, cut, batch, samples);
          return Enqueue<T, kPerVector<T>>(launch, cut, batch, samples);
        });
      });
}

std::size_t ChannelsLastSplitScratchBytes(const NormSpec& spec, const Segment* segments,
                                          std::size_t count) {
  const SplitCut cut(spec);
  std::int64_t tiles = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t positions = cut.TilePositions(segments[i].spatial);
    tiles += segments[i].samples * ((segments[i].spatial + positions - 1) / positions);
  }
  const std::int64_t scales_bytes = CountSamples(segments, count) * spec.groups * cut.scale_bytes;
  return static_cast<std::size_t>((scales_bytes + 255) / 256 * 256 +
                                  tiles * cut.batch.column_blocks * cut.slots * cut.moments_bytes);
}

}  // namespace normd::norm::cuda
