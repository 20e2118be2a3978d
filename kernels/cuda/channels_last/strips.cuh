// The building blocks of kernels that hold channels-last strips on chip: a strip, a thread's column
// of it and a block's shared memory; and how a launch becomes batches of strips.

#ifndef NORMD_KERNELS_CUDA_CHANNELS_LAST_STRIPS_CUH_
#define NORMD_KERNELS_CUDA_CHANNELS_LAST_STRIPS_CUH_

#include "kernels/cuda/channels_last/columns.cuh"
#include "kernels/cuda/channels_last/strip_plan.h"
#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/cache_policy.cuh"
#include "kernels/cuda/dispatch.cuh"
#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/row_batch.cuh"

namespace normd::norm::cuda {

constexpr int kChunk = 4;  // Vectors that are awaited together.

// Copies a vector into shared memory; asynchronously if it is aligned.
template <typename T, bool kAligned>
__device__ inline void CopyVector(Vector* slot, const char* address, int present, int width) {
#if __CUDA_ARCH__ >= 800
  if constexpr (kAligned) {
    CopyToShared(SharedAddress(slot), address, KeepPolicy());
    return;
  }
#endif
  *slot = LoadColumn<T>(address, present, width);
}

// A strip. Its bytes begin at x and y; those of successive positions are position_bytes apart.
struct Strip {
  const char* x;
  char* y;
  std::int64_t spatial;
  std::int64_t position_bytes;
  std::int64_t first_channel;
};

// The batch's rows are the strips: its groups are the strips of a sample.
template <typename T>
__device__ inline Strip FindStrip(const RowBatch& batch, std::uint32_t index) {
  const Row row = FindRow(batch, index);
  // FindRow assumes adjacent strips: its result is right for the sample, not for the strip.
  const auto element = static_cast<std::int64_t>(sizeof(T));
  const std::int64_t in_sample = row.first_channel / batch.channels_per_group;
  const std::int64_t correction = (in_sample * row.elements - row.first_channel) * element;
  return {row.x - correction, row.y - correction, row.spatial,
          batch.channels_per_group * element * batch.groups.value(), row.first_channel};
}

// A block's dynamic shared memory.
template <typename A>
struct StripShared {
  Vector* slots;        // [vectors after the held ones][threads]
  Moments<A>* threads;  // [rows][columns][parts]
  Moments<A>* blocks;   // [groups][blocks of the strip], if they are exchanged here
  A* gamma;             // [channels], of the strip
  A* beta;              // [channels]
  RowScale<A>* scales;  // [groups]

  __device__ StripShared(char* memory, const StripPlan& plan, int channels, int parts) {
    slots = reinterpret_cast<Vector*>(memory);
    threads = reinterpret_cast<Moments<A>*>(slots + (plan.vectors - plan.held) * plan.threads);
    blocks = threads + plan.rows * plan.columns * parts;
    gamma = reinterpret_cast<A*>(blocks + plan.groups * plan.blocks);
    beta = gamma + channels;
    scales = reinterpret_cast<RowScale<A>*>(beta + channels);
  }
};

// One thread's vectors of a strip.
struct StripColumn {
  const char* x;  // The first vector.
  char* y;
  std::int64_t step;  // Bytes from one vector to the next.
  int count;
  int x_width;  // The accesses that fit every vector, if alignment is not known.
  int y_width;
};

// The part of a thread that is the same in every strip.
struct StripThread {
  int row;
  int first_channel;  // In the strip.
  int present;        // Elements of a vector that exist.
  int first_group;    // In the strip.
  int left_in_group;  // Channels of that group, from first_channel on.
};

template <typename T>
__device__ inline StripThread MakeStripThread(const StripPlan& plan, int channels) {
  constexpr int kCount = kPerVector<T>;
  const int thread = static_cast<int>(threadIdx.x);
  const int group_channels = channels / plan.groups;
  StripThread out;
  out.row = thread / plan.columns;
  out.first_channel = (thread - out.row * plan.columns) * kCount;
  out.present = min(kCount, channels - out.first_channel);
  out.first_group = out.first_channel / group_channels;
  out.left_in_group = (out.first_group + 1) * group_channels - out.first_channel;
  return out;
}

struct Positions {
  std::int64_t begin;
  int count;
};

// The positions of block `rank`; none for ranks that do not exist.
__device__ inline Positions PositionsOfBlock(const StripPlan& plan, std::int64_t spatial,
                                             int rank) {
  const std::int64_t per_block = (spatial + plan.blocks - 1) / plan.blocks;
  const std::int64_t begin = min(rank * per_block, spatial);
  return {begin, static_cast<int>(min(per_block, spatial - begin))};
}

template <typename T>
__device__ inline StripColumn FindStripColumn(const StripPlan& plan, const StripThread& thread,
                                              const Strip& strip, int rank) {
  const Positions positions = PositionsOfBlock(plan, strip.spatial, rank);
  const std::int64_t offset = (positions.begin + thread.row) * strip.position_bytes +
                              thread.first_channel * static_cast<std::int64_t>(sizeof(T));
  const std::int64_t strip_bytes = strip.first_channel * static_cast<std::int64_t>(sizeof(T));
  StripColumn out;
  out.x = strip.x + offset;
  out.y = strip.y + offset;
  out.step = plan.rows * strip.position_bytes;
  out.count = thread.row >= plan.rows || positions.count <= thread.row
                  ? 0
                  : (positions.count - thread.row + plan.rows - 1) / plan.rows;
  out.x_width = AccessWidth(strip.x, strip.position_bytes, strip_bytes);
  out.y_width = AccessWidth(strip.y, strip.position_bytes, strip_bytes);
  return out;
}

// The first `present` of N values in shared memory; if kAligned they begin at a multiple of 16
// bytes.
template <bool kAligned, typename A, int N>
__device__ inline void LoadShared(const A* values, int present, A (&out)[N]) {
  if constexpr (kAligned) {
    struct alignas(16) Values {
      A value[N];
    };
    const Values all = *reinterpret_cast<const Values*>(values);
#pragma unroll
    for (int i = 0; i < N; ++i) out[i] = all.value[i];
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (i < present) out[i] = values[i];
    }
  }
}

// Host side: calls enqueue(ElementType<T>(), parts, aligned, batch) for batches whose rows are
// strips; parts is an integral_constant, kParts of ColumnSums.
template <typename Enqueue>
Status ForEachStripBatch(const Launch& launch, const StripPlan& plan, const char* what,
                         Enqueue enqueue) {
  NormSpec spec = launch.spec;
  spec.groups /= plan.groups;
  Launch strips = {spec,         launch.params, launch.limits,   launch.plan,   launch.segments,
                   launch.count, launch.stream, launch.exchange, launch.scratch};
  const auto strip_bytes =
      spec.channels / spec.groups * static_cast<std::int64_t>(SizeOf(spec.dtype));
  const std::int64_t group_channels = launch.spec.channels / launch.spec.groups;
  return ForEachRowBatch(strips, what, [&](auto element, auto rows_aligned, const RowBatch& batch) {
    constexpr int kCount = kPerVector<typename decltype(element)::Type>;
    const auto with_parts = [&](auto aligned) {
      const int parts = PartsOfColumn(group_channels, kCount);
      if (parts == 1) return enqueue(element, std::integral_constant<int, 1>(), aligned, batch);
      if (parts == 2) return enqueue(element, std::integral_constant<int, 2>(), aligned, batch);
      return enqueue(element, std::integral_constant<int, kCount>(), aligned, batch);
    };
    if (decltype(rows_aligned)::value && strip_bytes % kVectorBytes == 0) {
      return with_parts(std::true_type());
    }
    return with_parts(std::false_type());
  });
}

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_CHANNELS_LAST_STRIPS_CUH_
