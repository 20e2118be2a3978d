// Given statistics, channels last or without trailing dimensions: a matrix of positions x channels.
//
// Phases: each thread asks for its four granules of a column, reads the parameters of the column's
// channels while they come, scales and stores.
// Bytes: each element is read once and written once.
// Occupancy: 256 threads with 64 bytes of data each on their way, no shared memory, no barrier.

#include <cuda_runtime.h>

#include <vector>

#include "kernels/cuda/channels_last_tiles.cuh"
#include "kernels/cuda/dispatch.cuh"
#include "kernels/cuda/elementwise.cuh"

namespace norm::cuda {
namespace {

// Positions that a thread takes: all of its loads are on their way at once, and blocks that run
// together touch neighbouring memory.
constexpr std::int64_t kSteps = kTileUnroll;

template <typename T>
__global__ void __launch_bounds__(kTileThreads, 3)
    ElementwiseColumns(const __grid_constant__ TileBatch batch,
                       const __grid_constant__ GivenStatistics given) {
  using A = Accumulator<T>;
  const TileColumn column = FindTileColumn<T>(batch, blockIdx.x);
  if (column.count == 0) return;
  Granule granules[kTileUnroll];
  LoadColumnPart<T>(column, 0, granules);
  const NormParams& params = given.params;
  ColumnScale<T, kPerGranule<T>> scale;
  LoadParams(params.mean, column.first_channel, column.present, A(0), scale.mean);
  LoadParams(params.gamma, column.first_channel, column.present, A(1), scale.factor);
  LoadParams(params.variance, column.first_channel, column.present, A(1), scale.offset);
#pragma unroll
  for (int i = 0; i < kPerGranule<T>; ++i) {
    scale.factor[i] *= ReciprocalRoot(scale.offset[i], given.eps);
  }
  LoadParams(params.beta, column.first_channel, column.present, A(0), scale.offset);
  ScaleColumn(column, scale, given.activation, given.leaky_slope, granules);
}

}  // namespace

Status LaunchElementwiseColumns(const Launch& launch) {
  TileBatch batch = EmptyTileBatch(launch.spec, kTileThreads);
  const GivenStatistics given(launch.spec, launch.params);
  // Samples do not matter here: all positions of a segment are one sample's.
  std::vector<Segment> segments(launch.segments, launch.segments + launch.count);
  for (Segment& segment : segments) {
    segment.spatial *= segment.samples;
    segment.samples = 1;
  }
  return ForEachTileBatch(
      launch.spec, segments.data(), segments.size(), "elementwise columns", &batch,
      [&](const Segment&) { return kSteps * batch.rows; },
      [&]() {
        return WithElementType(launch.spec.dtype, [&](auto element) {
          using T = typename decltype(element)::Type;
          ElementwiseColumns<T><<<batch.tiles, kTileThreads, 0, launch.stream>>>(batch, given);
          return cudaGetLastError();
        });
      });
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

}  // namespace norm::cuda
