// Rows of positions, channels first: tiles of positions by all channels of a group, in registers.
//
// Phases: a thread takes up to 16 channels at its own 16 bytes of positions, so that neighbours
// read neighbouring bytes. It sums them for each position, threads that share a position merge by
// shuffles and through shared memory, and every thread scales its elements. Each channel's factor
// and offset are computed once for all positions of a tile. From 8.0 on blocks are persistent:
// while a block works on a tile, each thread's part of the next arrives in shared memory, where
// only that thread reads it. Where samples share their factors, tiles span them: otherwise their
// last tiles and the blocks' last turn would be partly empty.
// Bytes: each element is read once and written once.
// Occupancy: two blocks of 256 threads with 16 vectors each: 128 KiB of tiles in work on a
// multiprocessor, and as many in flight.
// Determinism: which thread sums a channel, and the order of merges, follow from the number of
// channels alone. Where 16 bytes do not divide the bytes of a channel, positions move in words of 8
// bytes or of one element.

#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/stages/position_slabs_plan.h"
#include "kernels/cuda/stages/positions_merge.cuh"
#include "kernels/cuda/stages/stage_launch.cuh"
#include "kernels/cuda/stages/stages.h"

namespace normd::norm::cuda {
namespace {

constexpr int kBlocksOfMultiprocessor = 2;
constexpr int kHalfVectorBytes = kVectorBytes / 2;
// With fewer, a tile has so many positions that their partials do not fit beside the next tile.
constexpr int kMinStreamedSplits = 4;

// The number of threads that share a position: the fewest that hold its channels, a power of two.
int SplitsOf(std::int64_t channels) {
  int splits = 1;
  while (std::int64_t{splits} * kColumnChannels < channels) splits *= 2;
  return splits;
}

__device__ inline void FillTable(const StageBatch& batch, const ColumnPlace& place,
                                 ChannelFactors<float> (&channels)[kMaxColumnChannels]) {
  FillFactors(batch, *place.segment, place.sample, place.first_channel,
              static_cast<int>(batch.channels_per_group), channels);
}

// One tile for each block.
template <typename T, int kWordBytes>
__global__ void __launch_bounds__(kColumnThreads, kBlocksOfMultiprocessor)
    ColumnTiles(const __grid_constant__ StageBatch batch, const int splits) {
  constexpr int kCount = kPerVector<T>;
  __shared__ PositionSlot slots[kColumnThreads * kCount];
  __shared__ ChannelFactors<float> channels[kMaxColumnChannels];
  const ColumnPlace place = FindColumns<T, kWordBytes>(batch, splits, blockIdx.x);
  Columns<T, kWordBytes> held(batch, place);
  AwaitPreviousKernel();
  held.Load();
  held.AddResidual();
  if (batch.affine) FillTable(batch, place, channels);
  Moments<float> moments[kCount];
  held.Sum(moments);
  PutPartials<T>(place, moments, slots);
  __syncthreads();
  MergePositions<T, kWordBytes>(batch, place, slots, slots);
  __syncthreads();
  held.RepackAll();
  held.Write(slots, channels);
}

// Shared memory of a block of ColumnStream beside the next tile and the partials.
constexpr std::size_t kStagingBytes = std::size_t{kColumnChannels} * kColumnThreads * kVectorBytes;
std::size_t StreamBytes(int splits, int per_vector) {
  const std::size_t positions = static_cast<std::size_t>(kColumnThreads / splits * per_vector);
  const auto parts = static_cast<std::size_t>(std::min(splits, kColumnWarps));
  return kStagingBytes + (parts + 1) * positions * sizeof(PositionSlot) +
         kMaxColumnChannels * sizeof(ChannelFactors<float>);
}

// Processes tiles in turn. Partials are written before the first barrier of a tile and read before
// the second. Scales and factors are written between the two and read after them, until the next
// tile's first barrier.
template <typename T>
__global__ void __launch_bounds__(kColumnThreads, kBlocksOfMultiprocessor)
    ColumnStream(const __grid_constant__ StageBatch batch, const int splits) {
#if __CUDA_ARCH__ >= 800
  constexpr int kCount = kPerVector<T>;
  extern __shared__ Vector staging[];
  const Vector* const own = staging + threadIdx.x;
  ColumnPlace place = FindColumns<T, kVectorBytes>(batch, splits, blockIdx.x);
  const ColumnMerge merge(place, kCount);
  auto* const slots = reinterpret_cast<PositionSlot*>(staging + kColumnChannels * kColumnThreads);
  PositionSlot* const scales = slots + merge.parts * merge.positions;
  auto& channels =
      *reinterpret_cast<ChannelFactors<float>(*)[kMaxColumnChannels]>(scales + merge.positions);
  AwaitPreviousKernel();
  Columns<T, kVectorBytes>(batch, place).Request(SharedAddress(own));
  // The segment and the first channel of the sample whose factors are in the table.
  const StageSegment* filled_of = nullptr;
  std::int64_t filled = -1;
#pragma unroll 1
  for (std::uint32_t tile = blockIdx.x; tile < batch.rows; tile += gridDim.x) {
    Columns<T, kVectorBytes> held(batch, place);
    AwaitCopies();
    held.Take(own);
    const ColumnPlace next =
        FindColumns<T, kVectorBytes>(batch, splits, min(tile + gridDim.x, batch.rows - 1));
    held.RepackAll();
    if (tile + gridDim.x < batch.rows)
      Columns<T, kVectorBytes>(batch, next).Request(SharedAddress(own));
    held.AddResidual();
    Moments<float> moments[kCount];
    held.Sum(moments);
    PutPartials<T>(place, moments, slots);
    __syncthreads();
    const std::int64_t wanted =
        (batch.scale || batch.shift ? place.sample * batch.channels : 0) + place.first_channel;
    if (batch.affine && (filled != wanted || filled_of != place.segment)) {
      FillTable(batch, place, channels);
    }
    filled = wanted;
    filled_of = place.segment;
    MergePositions<T, kVectorBytes>(batch, place, slots, scales);
    __syncthreads();
    held.RepackAll();
    held.Write(scales, channels);
    place = next;
  }
#endif
}

// The largest word that divides every channel's address and bytes, of those that there are kernels
// for: 16 bytes, for 16-bit types 8, or one element.
int WordBytesOf(const StageBatch& batch) {
  const auto element = static_cast<int>(SizeOf(batch.dtype));
  std::uintptr_t bits = 0;
  for (int i = 0; i < batch.segment_count; ++i) {
    const StageSegment& segment = batch.segments[i];
    for (const char* tensor : {segment.x, static_cast<const char*>(segment.y), segment.residual,
                               static_cast<const char*>(segment.residual_out), segment.other}) {
      bits |= reinterpret_cast<std::uintptr_t>(tensor);
    }
    bits |= static_cast<std::uintptr_t>(segment.spatial * element);
  }
  if (bits % kVectorBytes == 0) return kVectorBytes;
  return element == 2 && bits % kHalfVectorBytes == 0 ? kHalfVectorBytes : element;
}

}  // namespace

cudaError_t PreparePositions(const DeviceLimits& limits) {
  for (const auto kernel : {ColumnStream<Half>, ColumnStream<BFloat>, ColumnStream<float>}) {
    if (const cudaError_t error = AllowSharedBytes(kernel, limits); error != cudaSuccess)
      return error;
  }
  return PreparePositionSlabs(limits);
}

bool TakesPositions(const Launch& launch, const StageBatch& batch) {
  return batch.places == RowPlaces::kPositions && batch.input_bias.data == nullptr &&
         TilesPositions(launch.spec) &&
         (launch.plan.slabs > 0 || batch.channels_per_group <= kMaxColumnChannels);
}

cudaError_t LaunchPositions(const Launch& launch, StageBatch batch) {
  for (std::uint32_t i = 0, rows = 0; i < static_cast<std::uint32_t>(batch.segment_count); ++i) {
    StageSegment& segment = batch.segments[i];
    segment.groups = (segment.end_row - rows) / static_cast<std::uint32_t>(segment.spatial);
    rows = segment.end_row;
  }
  if (launch.plan.slabs > 0) return LaunchPositionSlabs(launch, batch);
  const int splits = SplitsOf(batch.channels_per_group);
  const auto per_vector = kVectorBytes / static_cast<std::int64_t>(SizeOf(launch.spec.dtype));
  const std::int64_t vectors = kColumnThreads / splits;
  const int word_bytes = WordBytesOf(batch);
  const bool spans = word_bytes == kVectorBytes && SpansGroups<kVectorBytes>(batch);
  // Tiles take the place of rows.
  std::uint32_t blocks = 0;
  for (int i = 0; i < batch.segment_count; ++i) {
    StageSegment& segment = batch.segments[i];
    const std::int64_t of_group = (segment.spatial + per_vector - 1) / per_vector;
    const std::int64_t tiles = (of_group + vectors - 1) / vectors;
    segment.positions = Divisor(static_cast<std::uint32_t>(spans ? of_group : tiles));
    blocks += static_cast<std::uint32_t>(spans ? (segment.groups * of_group + vectors - 1) / vectors
                                               : segment.groups * tiles);
    segment.end_row = blocks;
  }
  batch.rows = blocks;
  const auto enqueue = [&](auto element) {
    using T = typename decltype(element)::Type;
    const auto resident =
        static_cast<unsigned>(kBlocksOfMultiprocessor * launch.limits.multiprocessors);
    LaunchShape shape = {resident, dim3(kColumnThreads), StreamBytes(splits, kPerVector<T>)};
    const std::size_t room = launch.limits.shared_bytes_per_block / kBlocksOfMultiprocessor;
    if (word_bytes == kVectorBytes && blocks > resident && splits >= kMinStreamedSplits &&
        shape.shared_bytes <= room) {
      return LaunchOverlapping(launch.limits, launch.stream, shape, ColumnStream<T>, batch, splits);
    }
    auto* kernel = ColumnTiles<T, sizeof(T)>;
    if (word_bytes == kVectorBytes) kernel = ColumnTiles<T, kVectorBytes>;
    if constexpr (sizeof(T) == 2) {
      if (word_bytes == kHalfVectorBytes) kernel = ColumnTiles<T, kHalfVectorBytes>;
    }
    return LaunchOverlapping(launch.limits, launch.stream, kernel, blocks, kColumnThreads, batch,
                             splits);
  };
  return WithNarrowType(launch.spec.dtype, enqueue);
}

}  // namespace normd::norm::cuda
