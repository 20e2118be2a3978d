// Given statistics, channels last or without trailing dimensions: a matrix of positions x channels.
//
// Phases: each thread reads the parameters of its column's channels once and stays with the column.
// It asks for four granules of the column, and while they come scales and stores the four before.
// Bytes: each element is read once and written once.
// Occupancy: three blocks of 256 threads on a multiprocessor, which stay; 64 bytes of data of each
// thread on their way. Blocks that run together touch neighbouring memory.

#include <cuda_runtime.h>

#include <algorithm>
#include <vector>

#include "kernels/cuda/channels_last_tiles.cuh"
#include "kernels/cuda/dispatch.cuh"
#include "kernels/cuda/elementwise.cuh"

namespace normd::norm::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMinBlocks = 3;

struct ColumnsSegment {
  const char* x;
  char* y;
  std::int64_t positions;
};

struct ColumnsBatch {
  ColumnsSegment segments[kMaxRowSegments];
  int segment_count;
  std::int64_t channels;
  int column_blocks;
  int columns;  // Granules of one position in a block; the last column block may have fewer.
  int rows;     // Positions that a block's threads touch in one step.
  GivenStatistics given;
};
static_assert(sizeof(ColumnsBatch) <= 4000, "kernel parameters hold 4096 bytes");

// One thread's granules of one segment, step after step.
struct ColumnWalk {
  const char* x;              // The first of the step's.
  std::int64_t to_y;          // From x to y.
  std::int64_t row_bytes;     // From one granule of a step to the next.
  std::int64_t stride_bytes;  // From one step to the next.
  std::int64_t left;          // Positions from the first granule's on,
  std::int64_t stride;        // of which a step goes over so many.
  int rows;                   // Positions from one granule of a step to the next.
  int present;
  int x_width;
  int y_width;
};

template <typename T, bool kAligned>
__device__ inline void LoadStep(const ColumnWalk& walk, const char* x, std::int64_t left,
                                Granule (&granules)[kTileUnroll]) {
#pragma unroll
  for (int i = 0; i < kTileUnroll; ++i) {
    if (i * walk.rows < left) {
      granules[i] = kAligned ? LoadGranule(x) : LoadColumn<T>(x, walk.present, walk.x_width);
    }
    x += walk.row_bytes;
  }
}

template <typename T, bool kAligned>
__device__ inline void ScaleWalk(const ColumnsBatch& batch, ColumnWalk walk,
                                 const ColumnScale<T, kPerGranule<T>>& scale) {
  Granule granules[kTileUnroll];
  LoadStep<T, kAligned>(walk, walk.x, walk.left, granules);
  while (walk.left > 0) {
    Granule next[kTileUnroll];
    LoadStep<T, kAligned>(walk, walk.x + walk.stride_bytes, walk.left - walk.stride, next);
    char* y = const_cast<char*>(walk.x) + walk.to_y;
#pragma unroll
    for (int i = 0; i < kTileUnroll; ++i) {
      if (i * walk.rows < walk.left) {
        const Granule result =
            scale.Apply(granules[i], batch.given.activation, batch.given.leaky_slope);
        if constexpr (kAligned) {
          StoreGranule(y, result);
        } else {
          StoreColumn<T>(y, result, walk.present, walk.y_width);
        }
      }
      y += walk.row_bytes;
      granules[i] = next[i];
    }
    walk.x += walk.stride_bytes;
    walk.left -= walk.stride;
  }
}

template <typename T, bool kAligned>
__global__ void __launch_bounds__(kThreads, kMinBlocks)
    ElementwiseColumns(const __grid_constant__ ColumnsBatch batch) {
  using A = Accumulator<T>;
  constexpr int kCount = kPerGranule<T>;
  const int thread = static_cast<int>(threadIdx.x);
  const int row = thread / batch.columns;
  const int block = static_cast<int>(blockIdx.x) / batch.column_blocks;
  const int column_block = static_cast<int>(blockIdx.x) - block * batch.column_blocks;
  const std::int64_t channel =
      (std::int64_t{column_block} * batch.columns + (thread - row * batch.columns)) * kCount;
  const auto present = static_cast<int>(min(std::int64_t{kCount}, batch.channels - channel));
  if (row >= batch.rows || present <= 0) return;

  const NormParams& params = batch.given.params;
  ColumnScale<T, kCount> scale;
  LoadParams(params.mean, channel, present, A(0), scale.mean);
  LoadParams(params.gamma, channel, present, A(1), scale.factor);
  LoadParams(params.variance, channel, present, A(1), scale.offset);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    scale.factor[i] *= ReciprocalRoot(scale.offset[i], batch.given.eps);
  }
  LoadParams(params.beta, channel, present, A(0), scale.offset);

  const auto element = static_cast<std::int64_t>(sizeof(T));
  const std::int64_t step = std::int64_t{batch.rows} * kTileUnroll;
  const std::int64_t position_bytes = batch.channels * element;
  const std::int64_t position = block * step + row;
  const std::int64_t offset = position * position_bytes + channel * element;
  ColumnWalk walk;
  walk.rows = batch.rows;
  walk.present = present;
  walk.row_bytes = batch.rows * position_bytes;
  walk.stride = gridDim.x / batch.column_blocks * step;
  walk.stride_bytes = walk.stride * position_bytes;
  for (int i = 0; i < batch.segment_count; ++i) {
    const ColumnsSegment& segment = batch.segments[i];
    walk.x = segment.x + offset;
    walk.to_y = segment.y - segment.x;
    walk.left = segment.positions - position;
    walk.x_width = AccessWidth(segment.x, position_bytes, 0);
    walk.y_width = AccessWidth(segment.y, position_bytes, 0);
    ScaleWalk<T, kAligned>(batch, walk, scale);
  }
}

bool IsAligned(const ColumnsBatch& batch, DType dtype) {
  auto bits = static_cast<std::uintptr_t>(batch.channels) * SizeOf(dtype);
  for (int i = 0; i < batch.segment_count; ++i) {
    bits |= reinterpret_cast<std::uintptr_t>(batch.segments[i].x) |
            reinterpret_cast<std::uintptr_t>(batch.segments[i].y);
  }
  return bits % kGranuleBytes == 0;
}

cudaError_t EnqueueColumns(const Launch& launch, const ColumnsBatch& batch) {
  std::int64_t positions = 0;
  for (int i = 0; i < batch.segment_count; ++i) {
    positions = std::max(positions, batch.segments[i].positions);
  }
  const std::int64_t step = std::int64_t{batch.rows} * kTileUnroll;
  const std::int64_t resident =
      std::max<std::int64_t>(1, kMinBlocks * launch.limits.multiprocessors / batch.column_blocks);
  const std::int64_t blocks = std::min((positions + step - 1) / step, resident);
  return WithElementType(launch.spec.dtype, [&](auto element) {
    using T = typename decltype(element)::Type;
    const auto kernel = IsAligned(batch, launch.spec.dtype) ? ElementwiseColumns<T, true>
                                                            : ElementwiseColumns<T, false>;
    kernel<<<static_cast<unsigned>(blocks * batch.column_blocks), kThreads, 0, launch.stream>>>(
        batch);
    return cudaGetLastError();
  });
}

}  // namespace

Status LaunchElementwiseColumns(const Launch& launch) {
  const std::int64_t per_granule =
      kGranuleBytes / static_cast<std::int64_t>(SizeOf(launch.spec.dtype));
  const std::int64_t columns = (launch.spec.channels + per_granule - 1) / per_granule;
  ColumnsBatch batch = {};
  batch.channels = launch.spec.channels;
  batch.column_blocks = static_cast<int>((columns + kThreads - 1) / kThreads);
  batch.columns = static_cast<int>((columns + batch.column_blocks - 1) / batch.column_blocks);
  batch.rows = kThreads / batch.columns;
  batch.given = GivenStatistics(launch.spec, launch.params);
  for (std::size_t i = 0; i < launch.count; ++i) {
    const Segment& segment = launch.segments[i];
    batch.segments[batch.segment_count++] = {static_cast<const char*>(segment.x),
                                             static_cast<char*>(segment.y),
                                             segment.samples * segment.spatial};
    if (batch.segment_count < kMaxRowSegments && i + 1 < launch.count) continue;
    Status status = ToStatus(EnqueueColumns(launch, batch), "elementwise columns");
    if (!status.ok()) return status;
    batch.segment_count = 0;
  }
  return Status();
}

Status LaunchElementwise(const Launch& launch) {
  // Without trailing dimensions both layouts are one.
  std::vector<Segment> first, columns;
  for (std::size_t i = 0; i < launch.count; ++i) {
    const Segment& segment = launch.segments[i];
    const bool is_matrix = launch.spec.layout == Layout::kChannelsLast || segment.spatial == 1;
    (is_matrix ? columns : first).push_back(segment);
  }
  const auto part = [&](const std::vector<Segment>& segments) {
    Launch half = launch;
    half.segments = segments.data();
    half.count = segments.size();
    return half;
  };
  if (!first.empty()) {
    if (Status status = LaunchElementwiseFirst(part(first)); !status.ok()) return status;
  }
  return columns.empty() ? Status() : LaunchElementwiseColumns(part(columns));
}

}  // namespace normd::norm::cuda
