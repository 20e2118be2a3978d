// Channels-last rows that no cluster holds: two passes over memory.
//
// Phases: blocks sum tiles of 128 bytes by a few thousand positions and leave one partial per tile
// and group in the scratch memory; a warp per row merges the row's partials in the order of its
// tiles; blocks scale the tiles, the last one first, since the cache still holds the end.
// Bytes: each element is read twice and written once, less what the second pass finds in the cache.
// Occupancy: 256 threads with four vectors each on their way.
// Determinism: fixed places, one writer per partial, a fixed merge order; no atomics.

#include <cuda_runtime.h>

#include "kernels/cuda/dispatch.cuh"
#include "kernels/cuda/interleaved/channels_last.h"
#include "kernels/cuda/interleaved/tiles.cuh"

namespace normd::norm::cuda {
namespace {

constexpr std::int64_t kTileColumns = 8;
constexpr std::int64_t kMinTilePositions = 1024;
// Scratch bytes are at most this part of the tensor's, a little more where a tile ends early.
constexpr std::int64_t kScratchRatio = 320;
constexpr int kVectorsPerSum = 16;  // Longer columns are merged from sums of so many vectors.
constexpr int kRowsPerBlock = 8;    // That the merging kernel takes, one per warp.

// How the partials of a launch lie in the scratch memory: [tile][slot] and [sample][group].
struct SplitLayout {
  int groups;
  std::int64_t group_channels;
  int slots;  // Groups that a tile's columns can touch.
  bool centered;
  double eps;
  LeakySlope leaky_slope;
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

// Sums a thread's part of a tile, of which channels before `boundary` belong to its first group.
template <typename T, int kParts>
__device__ inline void SumColumn(const TileColumn& column, bool centered, int boundary,
                                 Moments<Accumulator<T>> (&total)[kParts]) {
  Vector vectors[kTileUnroll];
  for (std::int64_t begin = 0; begin < column.count; begin += kVectorsPerSum) {
    const std::int64_t end = min(begin + kVectorsPerSum, column.count);
    LoadColumnPart<T>(column, begin, vectors);
    ColumnSums<T, kParts> sums(centered, boundary, vectors[0]);
    for (std::int64_t at = begin; at < end;) {
#pragma unroll
      for (int i = 0; i < kTileUnroll; ++i) {
        if (at + i < end) sums.Add(vectors[i]);
      }
      at += kTileUnroll;
      LoadColumnPart<T>(column, at, vectors);
    }
    Moments<Accumulator<T>> partials[kParts];
    sums.Finish(static_cast<int>(end - begin), partials);
#pragma unroll
    for (int i = 0; i < kParts; ++i) total[i] = Merge(total[i], partials[i]);
  }
}

template <typename T, int kParts>
__global__ void __launch_bounds__(kTileThreads)
    SumTiles(const __grid_constant__ TileBatch batch, const SplitLayout layout,
             Moments<Accumulator<T>>* partials) {
  using A = Accumulator<T>;
  __shared__ Moments<A> threads[kTileThreads * kParts];
  const TileColumn column = FindTileColumn<T>(batch, blockIdx.x);
  const auto left_in_group =
      static_cast<int>(layout.group_channels - column.first_channel % layout.group_channels);
  Moments<A> total[kParts];
  SumColumn<T, kParts>(column, layout.centered, left_in_group, total);
#pragma unroll
  for (int i = 0; i < kParts; ++i) threads[threadIdx.x * kParts + i] = total[i];
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

// One warp merges the tiles of one row.
template <typename A>
__global__ void __launch_bounds__(kRowsPerBlock* kLanes)
    MergeTiles(const __grid_constant__ TileBatch batch, const SplitLayout layout,
               int vector_channels, const Moments<A>* partials, RowScale<A>* scales) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kRowsPerBlock +
                           static_cast<int>(threadIdx.x) / kLanes;
  const auto sample = static_cast<std::uint32_t>(row / layout.groups);
  const std::int64_t group = row % layout.groups;
  if (sample >= batch.samples) return;
  int index = 0;
  while (sample >= batch.segments[index].end_sample) ++index;
  const TileSegment& segment = batch.segments[index];
  const std::uint32_t first_sample = index == 0 ? 0 : batch.segments[index - 1].end_sample;
  const std::uint32_t first_tile = index == 0 ? 0 : batch.segments[index - 1].end_tile;
  const std::int64_t tiles_per_sample = segment.tiles_per_sample.value();
  const std::int64_t tile = first_tile + (sample - first_sample) * tiles_per_sample;
  const std::int64_t block_channels = std::int64_t{batch.columns} * vector_channels;
  const std::int64_t first_block = group * layout.group_channels / block_channels;
  const std::int64_t blocks =
      ((group + 1) * layout.group_channels - 1) / block_channels - first_block + 1;
  const std::int64_t count = tiles_per_sample / batch.column_blocks * blocks;
  Moments<A> merged;
  for (std::int64_t i = lane; i < count; i += kLanes) {
    const std::int64_t chunk = i / blocks;
    const std::int64_t block = first_block + (i - chunk * blocks);
    const GroupRange range =
        GroupsOf(block * block_channels, block_channels, batch.channels, layout.group_channels);
    merged = Merge(merged, partials[(tile + chunk * batch.column_blocks + block) * layout.slots +
                                    (group - range.first)]);
  }
  merged = MergeLanes(merged, static_cast<A>(layout.group_channels * segment.positions), kLanes);
  if (lane == 0) scales[row] = FinishRow(merged, layout.eps);
}

template <typename T, int kParts>
__global__ void __launch_bounds__(kTileThreads, 3)
    ScaleTiles(const __grid_constant__ TileBatch batch, const SplitLayout layout,
               const __grid_constant__ NormParams params, const RowScale<Accumulator<T>>* scales) {
  using A = Accumulator<T>;
  const TileColumn column = FindTileColumn<T>(batch, gridDim.x - 1 - blockIdx.x);
  if (column.count == 0) return;
  Vector vectors[kTileUnroll];
  LoadColumnPart<T>(column, 0, vectors);
  ColumnScale<T, kParts> scale;
  LoadParams(params.gamma, column.first_channel, column.present, A(1), scale.factor);
  LoadParams(params.beta, column.first_channel, column.present, A(0), scale.offset);
#pragma unroll
  for (int i = 0; i < kPerVector<T>; ++i) {
    if (i >= column.present) continue;
    const std::int64_t group = (column.first_channel + i) / layout.group_channels;
    scale.Set(i, scales[static_cast<std::int64_t>(column.sample) * layout.groups + group]);
  }
  ScaleColumn(column, scale, layout.activation, layout.leaky_slope.As<A>(), vectors);
}

// What the cut depends on: the spec alone.
struct SplitCut {
  explicit SplitCut(const NormSpec& spec) : batch(EmptyTileBatch(spec, kTileColumns)) {
    const auto element = static_cast<std::int64_t>(SizeOf(spec.dtype));
    group_channels = spec.channels / spec.groups;
    parts = PartsOfColumn(group_channels, kVectorBytes / element);
    moments_bytes =
        spec.dtype == DType::kFloat64 ? sizeof(Moments<double>) : sizeof(Moments<float>);
    scale_bytes =
        spec.dtype == DType::kFloat64 ? sizeof(RowScale<double>) : sizeof(RowScale<float>);
    const std::int64_t tile_channels = batch.columns * (kVectorBytes / element);
    slots = std::min(spec.groups, (tile_channels - 1) / group_channels + 2);
    const std::int64_t for_scratch =
        kScratchRatio * slots * moments_bytes / (batch.columns * kVectorBytes);
    wanted_positions = std::max(kMinTilePositions, for_scratch);
  }

  // Tiles of at least wanted_positions, all of about the same size.
  std::int64_t TilePositions(std::int64_t spatial) const {
    const std::int64_t tiles = std::max<std::int64_t>(1, spatial / wanted_positions);
    return (spatial + tiles - 1) / tiles;
  }

  TileBatch batch;
  std::int64_t group_channels;
  int parts;  // kParts of ColumnSums.
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
                              launch.spec.eps,
                              LeakySlope(launch.spec.leaky_slope),
                              launch.spec.activation};
  auto* const scales = static_cast<RowScale<A>*>(launch.scratch);
  const std::int64_t scales_bytes = all_samples * launch.spec.groups * cut.scale_bytes;
  auto* const partials = reinterpret_cast<Moments<A>*>(static_cast<char*>(launch.scratch) +
                                                       (scales_bytes + 255) / 256 * 256);
  SumTiles<T, kParts><<<batch.tiles, kTileThreads, 0, launch.stream>>>(batch, layout, partials);
  const std::int64_t rows = batch.samples * launch.spec.groups;
  const auto merge_blocks = static_cast<unsigned>((rows + kRowsPerBlock - 1) / kRowsPerBlock);
  MergeTiles<A><<<merge_blocks, kRowsPerBlock * kLanes, 0, launch.stream>>>(
      batch, layout, kPerVector<T>, partials, scales);
  ScaleTiles<T, kParts>
      <<<batch.tiles, kTileThreads, 0, launch.stream>>>(batch, layout, launch.params, scales);
  return cudaGetLastError();
}

std::int64_t Samples(const Segment* segments, std::size_t count) {
  std::int64_t samples = 0;
  for (std::size_t i = 0; i < count; ++i) samples += segments[i].samples;
  return samples;
}

}  // namespace

Status LaunchChannelsLastSplit(const Launch& launch) {
  const SplitCut cut(launch.spec);
  TileBatch batch = cut.batch;
  const std::int64_t samples = Samples(launch.segments, launch.count);
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
  const std::int64_t scales_bytes = Samples(segments, count) * spec.groups * cut.scale_bytes;
  return static_cast<std::size_t>((scales_bytes + 255) / 256 * 256 +
                                  tiles * cut.batch.column_blocks * cut.slots * cut.moments_bytes);
}

}  // namespace normd::norm::cuda
