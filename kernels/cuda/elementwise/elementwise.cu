// Given statistics, channels first: no rows, only elements and their channels.
//
// Phases: a block loads its tile of the tensor, 16 KiB, and meanwhile computes the factors of the
// tile's channels. If a warp's run of it covers at most two channels, every warp does so for
// itself; else the block keeps all the tile's factors in shared memory. Then it scales and stores.
// Bytes: each element is read once and written once; the parameters come from the caches.
// Occupancy: five blocks of 256 threads on a multiprocessor, each thread with 64 bytes of data in
// flight; up to 24 KiB of shared memory in a block.
// channels_last.cu computes channels last and tensors without trailing dimensions.

#include <cuda_runtime.h>

#include <algorithm>
#include <vector>

#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/device/memory.cuh"
#include "kernels/cuda/dispatch.cuh"
#include "kernels/cuda/elementwise/elementwise.cuh"

namespace normd::norm::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWantedBlocks = 5;
// Channels that a tile may touch. Tiles are small if there are fewer trailing elements than
// kFullTileSpatial.
constexpr int kMaxTileChannels = 1026;
constexpr std::int64_t kFullTileSpatial = 8;

template <int kVectors>
inline constexpr int kTileBytes = kThreads* kVectors* kVectorBytes;

struct FlatSegment {
  const char* x;
  char* y;
  std::int64_t bytes;
  std::int64_t spatial;
  Divisor spatial_divisor;  // Valid if spatial is below 2^31.
  std::uint32_t end_block;  // Blocks of the launch up to and including this segment's.
};

struct FlatBatch {
  int segment_count;
  std::uint32_t blocks;
  std::int64_t channels;
  Divisor channels_divisor;  // Valid if there are fewer than 2^31.
  GivenStatistics given;
  FlatSegment segments[kMaxRowSegments];
};
static_assert(sizeof(FlatBatch) <= 4000, "kernel parameters hold 4096 bytes");

// Where elements of a tensor lie among its rows, which have one channel each.
struct FlatPosition {
  std::int64_t row;
  std::int64_t offset;  // In the row.
};

template <typename T>
__device__ inline FlatPosition PositionOf(const FlatSegment& segment, std::int64_t element) {
  FlatPosition position;
  if (segment.bytes / static_cast<int>(sizeof(T)) <= (std::int64_t{1} << 30)) {
    const auto small = static_cast<std::uint32_t>(element);
    const std::uint32_t row = segment.spatial_divisor.Divide(small);
    position.row = row;
    position.offset = small - row * segment.spatial_divisor.value();
  } else {
    position.row = element / segment.spatial;
    position.offset = element - position.row * segment.spatial;
  }
  return position;
}

__device__ inline std::int64_t ChannelOf(const FlatBatch& batch, std::int64_t row) {
  if (row >= (std::int64_t{1} << 31)) return row % batch.channels;
  const auto small = static_cast<std::uint32_t>(row);
  return small - batch.channels_divisor.Divide(small) * batch.channels_divisor.value();
}

// The results of a vector whose first `before` elements are scaled by `first`, the others by
// `second`.
template <typename T, Activation kActivation>
__device__ inline Vector ScaleParts(const Vector& vector, int before,
                                    const ChannelScale<Accumulator<T>>& first,
                                    const ChannelScale<Accumulator<T>>& second,
                                    Accumulator<T> leaky_slope) {
  constexpr int kCount = kPerVector<T>;
  Accumulator<T> values[kCount];
  Unpack<T>(vector, values);
  if (before <= 0 || before >= kCount) {
    const ChannelScale<Accumulator<T>> scale = before > 0 ? first : second;
#pragma unroll
    for (auto& v : values) v = scale.Apply(v);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = (i < before ? first : second).Apply(values[i]);
  }
#pragma unroll
  for (auto& v : values) v = Activate<T, kActivation>(v, leaky_slope);
  return Pack<T>(values);
}

// Scales a run whose vectors may cover any number of channels. `offset` is the distance of the
// lane's first vector from the begin of the first channel in `scales`.
template <typename T, int kVectors>
__device__ inline void ScaleByTable(const FlatBatch& batch, const FlatSegment& segment,
                                    const ChannelScale<Accumulator<T>>* scales, int offset,
                                    Vector (&vectors)[kVectors]) {
  constexpr int kCount = kPerVector<T>;
  const auto spatial = static_cast<int>(segment.spatial);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int element = offset + i * kLanes * kCount;
    auto index = static_cast<int>(segment.spatial_divisor.Divide(element));
    Accumulator<T> values[kCount];
    Unpack<T>(vectors[i], values);
    int until = (index + 1) * spatial - element;
    ChannelScale<Accumulator<T>> scale = scales[index];
    if (until >= kCount) {
#pragma unroll
      for (auto& v : values) v = scale.Apply(v);
    } else {
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        if (j == until) {
          scale = scales[++index];
          until += spatial;
        }
        values[j] = scale.Apply(values[j]);
      }
    }
    Activate<T>(batch.given.activation, batch.given.leaky_slope.As<Accumulator<T>>(), values);
    vectors[i] = Pack<T>(values);
  }
}

template <typename T, bool kAligned, int kVectors>
__global__ void __launch_bounds__(kThreads, MinBlocks(kWantedBlocks, kThreads))
    Elementwise(const __grid_constant__ FlatBatch batch) {
  using A = Accumulator<T>;
  constexpr int kCount = kPerVector<T>;
  constexpr int kRunBytes = kVectors * kLanes * kVectorBytes;
  constexpr int kRunElements = kRunBytes / static_cast<int>(sizeof(T));
  constexpr int kTileElements = kRunElements * (kThreads / kLanes);
  __shared__ ChannelScale<A> scales[kMaxTileChannels];
  const int lane = static_cast<int>(threadIdx.x % kLanes);
  const int warp = static_cast<int>(threadIdx.x / kLanes);
  int found = 0;
  while (blockIdx.x >= batch.segments[found].end_block) ++found;
  const FlatSegment& segment = batch.segments[found];
  const std::uint32_t block = blockIdx.x - (found == 0 ? 0 : batch.segments[found - 1].end_block);
  const std::int64_t tile = static_cast<std::int64_t>(block) * kTileBytes<kVectors>;
  const std::int64_t begin = min(tile + warp * kRunBytes, segment.bytes);

  Vector vectors[kVectors];
  const auto bytes = static_cast<int>(min(std::int64_t{kRunBytes}, segment.bytes - begin));
  AwaitPreviousKernel();
  LetNextKernelBeginEarly<false>();
  LoadRun<T, kAligned>(segment.x + begin, bytes, lane, kLanes, vectors);
  const std::int64_t tile_element = tile / static_cast<int>(sizeof(T));
  if (segment.spatial >= kRunElements) {
    const FlatPosition run = PositionOf<T>(segment, tile_element + warp * kRunElements);
    const ChannelScale<A> first(batch.given, ChannelOf(batch, run.row));
    const std::int64_t left = segment.spatial - run.offset;
    ChannelScale<A> second = first;
    if (left < kRunElements) second = {batch.given, ChannelOf(batch, run.row + 1)};
    const int before = static_cast<int>(min(left, std::int64_t{kRunElements})) - lane * kCount;
    WithActivation(batch.given.activation, [&](auto activation) {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        vectors[i] = ScaleParts<T, decltype(activation)::value>(
            vectors[i], before - i * kLanes * kCount, first, second,
            batch.given.leaky_slope.As<Accumulator<T>>());
      }
    });
  } else {
    const FlatPosition start = PositionOf<T>(segment, tile_element);
    const auto offset = static_cast<int>(start.offset);
    const int last = (offset + kTileElements - 1) / static_cast<int>(segment.spatial);
    for (int i = static_cast<int>(threadIdx.x); i <= last; i += kThreads) {
      scales[i] = ChannelScale<A>(batch.given, ChannelOf(batch, start.row + i));
    }
    __syncthreads();
    ScaleByTable<T>(batch, segment, scales, offset + warp * kRunElements + lane * kCount, vectors);
  }
  StoreRun<T, kAligned>(segment.y + begin, bytes, lane, kLanes, vectors);
}

bool IsAligned(const FlatBatch& batch) {
  std::uintptr_t bits = 0;
  for (int i = 0; i < batch.segment_count; ++i) {
    const FlatSegment& segment = batch.segments[i];
    bits |= reinterpret_cast<std::uintptr_t>(segment.x) |
            reinterpret_cast<std::uintptr_t>(segment.y) |
            static_cast<std::uintptr_t>(segment.bytes);
  }
  return bits % kVectorBytes == 0;
}

template <int kVectors>
Status LaunchTiles(const Launch& launch, const std::vector<Segment>& segments) {
  constexpr std::int64_t kMaxBytes = std::int64_t{1} << 31;  // At most 2^30 elements.
  FlatBatch batch = {};
  batch.channels = launch.spec.channels;
  if (batch.channels < (std::int64_t{1} << 31)) {
    batch.channels_divisor = Divisor(static_cast<std::uint32_t>(batch.channels));
  }
  batch.given = GivenStatistics(launch.spec, launch.params);
  const auto flush = [&]() -> Status {
    const cudaError_t error = WithElementType(launch.spec.dtype, [&](auto element) {
      using T = typename decltype(element)::Type;
      const auto kernel =
          IsAligned(batch) ? Elementwise<T, true, kVectors> : Elementwise<T, false, kVectors>;
      return LaunchOverlapping(launch.limits, launch.stream, kernel, batch.blocks, kThreads, batch);
    });
    batch.segment_count = 0;
    batch.blocks = 0;
    return ToStatus(error, "elementwise");
  };
  for (const Segment& segment : segments) {
    const std::int64_t sample_bytes = launch.spec.channels * segment.spatial *
                                      static_cast<std::int64_t>(SizeOf(launch.spec.dtype));
    // A piece is whole samples, so it begins with channel 0.
    const std::int64_t piece = std::max<std::int64_t>(1, kMaxBytes / sample_bytes);
    for (std::int64_t done = 0; done < segment.samples; done += piece) {
      if (batch.segment_count == kMaxRowSegments || batch.blocks > (1u << 30)) {
        if (Status status = flush(); !status.ok()) return status;
      }
      FlatSegment& entry = batch.segments[batch.segment_count++];
      entry.x = static_cast<const char*>(segment.x) + done * sample_bytes;
      entry.y = static_cast<char*>(segment.y) + done * sample_bytes;
      entry.bytes = std::min(piece, segment.samples - done) * sample_bytes;
      entry.spatial = segment.spatial;
      if (segment.spatial < (std::int64_t{1} << 31)) {
        entry.spatial_divisor = Divisor(static_cast<std::uint32_t>(segment.spatial));
      }
      batch.blocks += static_cast<std::uint32_t>((entry.bytes + kTileBytes<kVectors> - 1) /
                                                 kTileBytes<kVectors>);
      entry.end_block = batch.blocks;
    }
  }
  return batch.blocks == 0 ? Status() : flush();
}

}  // namespace

Status LaunchElementwiseFirst(const Launch& launch) {
  std::vector<Segment> large, small;
  for (std::size_t i = 0; i < launch.count; ++i) {
    const Segment& segment = launch.segments[i];
    (segment.spatial < kFullTileSpatial ? small : large).push_back(segment);
  }
  Status status = LaunchTiles<4>(launch, large);
  return status.ok() ? LaunchTiles<1>(launch, small) : status;
}

}  // namespace normd::norm::cuda
