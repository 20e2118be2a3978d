// Given statistics, channels last or without trailing dimensions: a matrix of positions x channels.
//
// Phases: a block loads its first vectors, four of each thread's column, and meanwhile computes its
// channels' factors into shared memory. After one barrier each thread reads the factors of its
// column's channels, scales and stores. Blocks with few positions continue for some steps, so that
// parameters are a small part of what they read; they load a step's vectors before they store those
// of the step before.
// Bytes: each element is read once and written once; the parameters come from the caches.
// Occupancy: three blocks of 256 threads on a multiprocessor, each thread with 64 bytes of data in
// flight; up to 24 KiB of shared memory in a block.

#include <cuda_runtime.h>

#include <algorithm>
#include <vector>

#include "kernels/cuda/channels_last/tiles.cuh"
#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/dispatch.cuh"
#include "kernels/cuda/elementwise/elementwise.cuh"

namespace normd::norm::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMinBlocks = 3;
// The number of positions that a block should scale with one set of its channels' factors.
constexpr std::int64_t kWantedPositions = 32;

// Whether a step's vectors are loaded before those of the step before are stored. With 16-bit
// elements the registers are needed for eight channels' factors.
template <typename T>
inline constexpr bool kAhead = sizeof(T) >= 4;

struct ColumnsSegment {
  const char* x;
  char* y;
  std::int64_t positions;
};

struct ColumnsBatch {
  int segment_count;
  std::int64_t channels;
  int column_blocks;
  int columns;  // Vectors of one position in a block; the last column block may have fewer.
  int rows;     // Positions that a block's threads touch at a time; a step is kTileUnroll of them.
  int steps;    // The number of steps of a block.
  GivenStatistics given;
  ColumnsSegment segments[kMaxRowSegments];
};
static_assert(sizeof(ColumnsBatch) <= 4000, "kernel parameters hold 4096 bytes");

// One thread's vectors of one segment, a step at a time.
template <typename T, bool kAligned>
class ColumnWalk {
 public:
  // Begins at `position`; `channel` is the column's first, of which `present` exist.
  __device__ ColumnWalk(const ColumnsBatch& batch, const ColumnsSegment& segment,
                        std::int64_t position, std::int64_t channel, int present)
      : present_(present), rows_(batch.rows) {
    const std::int64_t position_bytes = batch.channels * static_cast<std::int64_t>(sizeof(T));
    const std::int64_t offset =
        position * position_bytes + channel * static_cast<std::int64_t>(sizeof(T));
    x_ = segment.x + offset;
    y_ = segment.y + offset;
    row_bytes_ = rows_ * position_bytes;
    to_load_ = to_store_ = present > 0 ? segment.positions - position : 0;
    x_width_ = AccessWidth(segment.x, position_bytes, 0);
    y_width_ = AccessWidth(segment.y, position_bytes, 0);
  }

  __device__ bool done() const { return to_store_ <= 0; }

  // Loads the vectors of the next step.
  __device__ void Load(Vector (&vectors)[kTileUnroll]) {
#pragma unroll
    for (int i = 0; i < kTileUnroll; ++i) {
      if (i * rows_ >= to_load_) continue;
      const char* const x = x_ + i * row_bytes_;
      vectors[i] = kAligned ? LoadVector(x) : LoadColumn<T>(x, present_, x_width_);
    }
    x_ += kTileUnroll * row_bytes_;
    to_load_ -= kTileUnroll * rows_;
  }

  // Stores apply(vector) for each vector of the next step.
  template <typename Function>
  __device__ void Store(const Vector (&vectors)[kTileUnroll], Function apply) {
#pragma unroll
    for (int i = 0; i < kTileUnroll; ++i) {
      if (i * rows_ >= to_store_) continue;
      char* const y = y_ + i * row_bytes_;
      if constexpr (kAligned) {
        StoreVector(y, apply(vectors[i]));
      } else {
        StoreColumn<T>(y, apply(vectors[i]), present_, y_width_);
      }
    }
    y_ += kTileUnroll * row_bytes_;
    to_store_ -= kTileUnroll * rows_;
  }

 private:
  const char* x_;           // The first vector to be loaded.
  char* y_;                 // The first vector to be stored.
  std::int64_t row_bytes_;  // From one vector to the next.
  std::int64_t to_load_;    // Positions from these vectors on.
  std::int64_t to_store_;
  int present_;
  int rows_;  // Positions from one vector to the next.
  int x_width_;
  int y_width_;
};

// How the channels of a block are scaled.
template <typename T>
struct ColumnScales {
  using A = Accumulator<T>;
  static constexpr int kCount = kPerVector<T>;

  A mean[kThreads * kCount];
  A factor[kThreads * kCount];
  A offset[kThreads * kCount];

  // Sets the factors of a column's channels, of which `present` exist.
  __device__ void Set(const GivenStatistics& given, int column, std::int64_t channel, int present) {
    const NormParams& params = given.params;
    A values[4][kCount];
    LoadParams(params.mean, channel, present, A(0), values[0]);
    LoadParams(params.variance, channel, present, A(1), values[1]);
    LoadParams(params.gamma, channel, present, A(1), values[2]);
    LoadParams(params.beta, channel, present, A(0), values[3]);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      mean[column * kCount + i] = values[0][i];
      factor[column * kCount + i] =
          ReciprocalRoot(values[1][i], given.eps.template As<A>()) * values[2][i];
      offset[column * kCount + i] = values[3][i];
    }
  }
  __device__ ColumnScale<T, kCount> OfColumn(int column) const {
    ColumnScale<T, kCount> scale;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      scale.mean[i] = mean[column * kCount + i];
      scale.factor[i] = factor[column * kCount + i];
      scale.offset[i] = offset[column * kCount + i];
    }
    return scale;
  }
};

template <typename T, bool kAligned>
__global__ void __launch_bounds__(kThreads, kMinBlocks)
    ElementwiseChannelsLast(const __grid_constant__ ColumnsBatch batch) {
  constexpr int kCount = kPerVector<T>;
  __shared__ __align__(kVectorBytes) ColumnScales<T> scales;
  const unsigned block = blockIdx.x / batch.column_blocks;
  const unsigned column_block = blockIdx.x - block * batch.column_blocks;
  const auto row = static_cast<int>(threadIdx.x / batch.columns);
  const auto column = static_cast<int>(threadIdx.x - row * batch.columns);
  const std::int64_t channel = (std::int64_t{column_block} * batch.columns + column) * kCount;
  const auto present =
      row < batch.rows ? static_cast<int>(min(std::int64_t{kCount}, batch.channels - channel)) : 0;
  const std::int64_t position = std::int64_t{block} * batch.steps * kTileUnroll * batch.rows + row;

  Vector vectors[kTileUnroll];
  ColumnWalk<T, kAligned> walk(batch, batch.segments[0], position, channel, present);
  AwaitPreviousKernel();
  LetNextKernelBeginEarly<false>();
  walk.Load(vectors);
  if (row == 0 && present > 0) scales.Set(batch.given, column, channel, present);
  __syncthreads();
  const ColumnScale<T, kCount> scale = scales.OfColumn(column);
  const auto leaky_slope = batch.given.leaky_slope.template As<Accumulator<T>>();
  const auto scale_segments = [&](auto apply) {
    for (int i = 0; i < batch.segment_count; ++i) {
      if (i > 0) {
        walk = {batch, batch.segments[i], position, channel, present};
        walk.Load(vectors);
      }
      for (int j = 0; j < batch.steps && !walk.done(); ++j) {
        const bool goes_on = j + 1 < batch.steps;
        Vector next[kTileUnroll] = {};
        if (kAhead<T> && goes_on) walk.Load(next);
        walk.Store(vectors, apply);
        if (!kAhead<T> && goes_on) walk.Load(next);
#pragma unroll
        for (int k = 0; k < kTileUnroll; ++k) vectors[k] = next[k];
      }
    }
  };
  if constexpr (kAligned) {
    WithActivation(batch.given.activation, [&](auto activation) {
      scale_segments([&](const Vector& vector) {
        return scale.template Apply<decltype(activation)::value>(vector, leaky_slope);
      });
    });
  } else {
    // Unaligned accesses are much code, so there is one copy for all activations.
    scale_segments([&](const Vector& vector) {
      return scale.Apply(vector, batch.given.activation, leaky_slope);
    });
  }
}

bool IsAligned(const ColumnsBatch& batch, DType dtype) {
  auto bits = static_cast<std::uintptr_t>(batch.channels) * SizeOf(dtype);
  for (int i = 0; i < batch.segment_count; ++i) {
    bits |= reinterpret_cast<std::uintptr_t>(batch.segments[i].x) |
            reinterpret_cast<std::uintptr_t>(batch.segments[i].y);
  }
  return bits % kVectorBytes == 0;
}

cudaError_t EnqueueColumns(const Launch& launch, ColumnsBatch* batch) {
  std::int64_t positions = 0;
  for (int i = 0; i < batch->segment_count; ++i) {
    positions = std::max(positions, batch->segments[i].positions);
  }
  const std::int64_t step = std::int64_t{batch->rows} * kTileUnroll;
  const std::int64_t steps = (positions + step - 1) / step;
  const std::int64_t resident =
      std::max<std::int64_t>(1, kMinBlocks * launch.limits.multiprocessors / batch->column_blocks);
  constexpr std::int64_t kMaxBlocks = std::int64_t{1} << 30;
  const std::int64_t wanted = std::min((kWantedPositions + step - 1) / step, steps / resident);
  const std::int64_t fewest = steps * batch->column_blocks / kMaxBlocks + 1;
  batch->steps = static_cast<int>(std::max(wanted, fewest));
  const std::int64_t blocks = (steps + batch->steps - 1) / batch->steps * batch->column_blocks;
  return WithElementType(launch.spec.dtype, [&](auto element) {
    using T = typename decltype(element)::Type;
    const auto kernel = IsAligned(*batch, launch.spec.dtype) ? ElementwiseChannelsLast<T, true>
                                                             : ElementwiseChannelsLast<T, false>;
    return LaunchOverlapping(launch.limits, launch.stream, kernel, static_cast<unsigned>(blocks),
                             kThreads, *batch);
  });
}

}  // namespace

Status LaunchElementwiseChannelsLast(const Launch& launch) {
  const std::int64_t per_vector =
      kVectorBytes / static_cast<std::int64_t>(SizeOf(launch.spec.dtype));
  const std::int64_t columns = (launch.spec.channels + per_vector - 1) / per_vector;
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
    Status status = ToStatus(EnqueueColumns(launch, &batch), "elementwise columns");
    if (!status.ok()) return status;
    batch.segment_count = 0;
  }
  return Status();
}

Status LaunchElementwise(const Launch& launch) {
  // Without trailing dimensions both layouts are the same. One channel is one run.
  std::vector<Segment> first, columns;
  for (std::size_t i = 0; i < launch.count; ++i) {
    const Segment& segment = launch.segments[i];
    // A single element has no tile of its own there: it would count as 2048 channels.
    if (launch.spec.channels == 1 && segment.samples * segment.spatial > 1) {
      first.push_back({segment.x, segment.y, 1, segment.samples * segment.spatial});
      continue;
    }
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
  return columns.empty() ? Status() : LaunchElementwiseChannelsLast(part(columns));
}

}  // namespace normd::norm::cuda
