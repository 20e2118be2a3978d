// Given statistics, channels first: no rows, only elements and their channels.
//
// Phases: a block asks for its tile of the tensor, 16 KiB, works out the scales of the tile's
// channels while it comes, leaves them in shared memory, and after one barrier scales and stores.
// Bytes: each element is read once and written once; the parameters come from the caches.
// Occupancy: 256 threads with 64 bytes of data each on their way; up to 24 KiB of shared memory.
// Channels last, and tensors without trailing dimensions, are elementwise_columns.cu's.

#include <cuda_runtime.h>

#include <algorithm>
#include <vector>

#include "kernels/cuda/dispatch.cuh"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/memory.cuh"

namespace normd::norm::cuda {
namespace {

constexpr int kThreads = 256;
// Channels that a tile may touch. With fewer trailing elements than kFullTileSpatial tiles are
// small.
constexpr int kMaxTileChannels = 1026;
constexpr std::int64_t kFullTileSpatial = 8;

template <int kGranules>
inline constexpr int kTileBytes = kThreads* kGranules* kGranuleBytes;

struct FlatSegment {
  const char* x;
  char* y;
  std::int64_t bytes;
  std::int64_t spatial;
  Divisor spatial_divisor;  // Valid if spatial is below kMaxDivided.
  std::uint32_t end_block;  // Blocks of the launch up to and with this segment's.
};
constexpr std::int64_t kMaxDivided = std::int64_t{1} << 30;

struct FlatBatch {
  FlatSegment segments[kMaxRowSegments];
  int segment_count;
  std::uint32_t blocks;
  std::int64_t channels;
  GivenStatistics given;
};
static_assert(sizeof(FlatBatch) <= 4000, "kernel parameters hold 4096 bytes");

// Scales and stores a granule whose first element lies `offset` elements behind the first channel's
// begin.
template <typename T>
__device__ inline Granule ScaleGranule(const FlatBatch& batch, const FlatSegment& segment,
                                       const ChannelScale<Accumulator<T>>* scales,
                                       std::int64_t offset, const Granule& granule) {
  using A = Accumulator<T>;
  constexpr int kCount = kPerGranule<T>;
  A values[kCount];
  Unpack<T>(granule, values);
  const auto spatial = segment.spatial;
  int index = spatial < kMaxDivided
                  ? segment.spatial_divisor.Divide(static_cast<std::uint32_t>(offset))
                  : offset >= spatial;
  const std::int64_t left = (index + 1) * spatial - offset;
  ChannelScale<A> scale = scales[index];
  if (left >= kCount) {
#pragma unroll
    for (A& v : values) v = scale.Apply(v);
  } else {
    auto until = static_cast<int>(left);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i == until) {
        scale = scales[++index];
        until += static_cast<int>(min(spatial, std::int64_t{kCount}));
      }
      values[i] = scale.Apply(values[i]);
    }
  }
  Activate<T>(batch.given.activation, batch.given.leaky_slope, values);
  return Pack<T>(values);
}

template <typename T, bool kAligned, int kGranules>
__global__ void __launch_bounds__(kThreads) Elementwise(const __grid_constant__ FlatBatch batch) {
  using A = Accumulator<T>;
  constexpr int kCount = kPerGranule<T>;
  constexpr int kTileElements = kThreads * kGranules * kCount;
  constexpr int kRunBytes = kGranules * kLanes * kGranuleBytes;
  __shared__ ChannelScale<A> scales[kMaxTileChannels];
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  int found = 0;
  while (blockIdx.x >= batch.segments[found].end_block) ++found;
  const FlatSegment& segment = batch.segments[found];
  const std::uint32_t block = blockIdx.x - (found == 0 ? 0 : batch.segments[found - 1].end_block);
  const std::int64_t tile = static_cast<std::int64_t>(block) * kTileBytes<kGranules>;
  const std::int64_t begin = min(tile + warp * kRunBytes, segment.bytes);

  Granule granules[kGranules];
  const auto bytes = static_cast<int>(min(std::int64_t{kRunBytes}, segment.bytes - begin));
  LoadRun<T, kAligned>(segment.x + begin, bytes, lane, kLanes, granules);
  const std::int64_t element = tile / static_cast<std::int64_t>(sizeof(T));
  const std::int64_t row = element / segment.spatial;
  const std::int64_t offset = element - row * segment.spatial;
  const std::int64_t last = (offset + kTileElements - 1) / segment.spatial;
  for (int i = static_cast<int>(threadIdx.x); i <= last; i += kThreads) {
    scales[i] = ChannelScale<A>(batch.given, (row + i) % batch.channels);
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kGranules; ++i) {
    granules[i] = ScaleGranule<T>(
        batch, segment, scales,
        offset + warp * (kRunBytes / static_cast<int>(sizeof(T))) + (i * kLanes + lane) * kCount,
        granules[i]);
  }
  StoreRun<T, kAligned>(segment.y + begin, bytes, lane, kLanes, granules);
}

bool IsAligned(const FlatBatch& batch) {
  std::uintptr_t bits = 0;
  for (int i = 0; i < batch.segment_count; ++i) {
    const FlatSegment& segment = batch.segments[i];
    bits |= reinterpret_cast<std::uintptr_t>(segment.x) |
            reinterpret_cast<std::uintptr_t>(segment.y) |
            static_cast<std::uintptr_t>(segment.bytes);
  }
  return bits % kGranuleBytes == 0;
}

template <int kGranules>
Status LaunchTiles(const Launch& launch, const std::vector<Segment>& segments) {
  constexpr std::int64_t kMaxBytes = std::int64_t{1} << 40;  // Few enough blocks for a grid.
  FlatBatch batch = {};
  batch.channels = launch.spec.channels;
  batch.given = GivenStatistics(launch.spec, launch.params);
  const auto flush = [&]() -> Status {
    const cudaError_t error = WithElementType(launch.spec.dtype, [&](auto element) {
      using T = typename decltype(element)::Type;
      const auto kernel =
          IsAligned(batch) ? Elementwise<T, true, kGranules> : Elementwise<T, false, kGranules>;
      kernel<<<batch.blocks, kThreads, 0, launch.stream>>>(batch);
      return cudaGetLastError();
    });
    batch.segment_count = 0;
    batch.blocks = 0;
    return ToStatus(error, "elementwise");
  };
  for (const Segment& segment : segments) {
    const std::int64_t sample_bytes = launch.spec.channels * segment.spatial *
                                      static_cast<std::int64_t>(SizeOf(launch.spec.dtype));
    // A piece is whole samples, so that it begins with channel 0.
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
      if (segment.spatial < kMaxDivided) {
        entry.spatial_divisor = Divisor(static_cast<std::uint32_t>(segment.spatial));
      }
      batch.blocks += static_cast<std::uint32_t>((entry.bytes + kTileBytes<kGranules> - 1) /
                                                 kTileBytes<kGranules>);
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
