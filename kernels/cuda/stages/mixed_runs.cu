// Rows of positions where runs of channels and of positions take turns: tiles of neighbouring rows
// by all channels, in shared memory.
//
// Phases: a block copies the lines of its tile (mixed_runs_plan.h) into contiguous rows; it adds a
// residual on the way, and writes residual_out. Lanes or warps that share a row sum its vectors;
// partials meet in shared memory. Then each vector is scaled in place, and the lines are copied
// back.
// Bytes: each element is read once and written once; if rows do not fit into shared memory,
// everything but the last chunk is read twice.
// Occupancy: up to 64 registers; short rows have tiles of 8 KiB, eight blocks to a multiprocessor,
// others tiles of up to 100 KiB, two blocks.
// Determinism: the plan says which thread sums which of a row's elements, by the spec and the runs
// of positions. Addresses only decide how much moves at once.

#include <cuda_runtime.h>

#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/stages/mixed_runs_tile.cuh"
#include "kernels/cuda/stages/stage_launch.cuh"
#include "kernels/cuda/stages/stage_sums.cuh"
#include "kernels/cuda/stages/stages.h"

namespace normd::norm::cuda {
namespace {

constexpr int kBlocksOfMultiprocessor = 2;

// The memory through which the threads of a block exchange their rows' statistics.
struct TileStatistics {
  Moments<float> partials[kMostTileRows];  // For each row's parts.
  RowScale<float> scales[kMostTileRows];
};

// A thread's share of the rows: `lanes` of a warp take a row together, or `parts` warps do.
template <typename T>
class TileWorker {
 public:
  static constexpr int kCount = kPerVector<T>;

  __device__ TileWorker(const StageBatch& batch, const TileCut& cut, const TilePlace& place,
                        TileStatistics& statistics)
      : batch_(batch),
        place_(place),
        statistics_(statistics),
        params_(cut.params),
        lanes_(cut.lanes),
        parts_(cut.parts) {
    const int thread = static_cast<int>(threadIdx.x);
    const int of_row = lanes_ * parts_;
    first_ = thread & (of_row - 1);
    row_ = thread >> Log(of_row);
    rows_at_once_ = static_cast<int>(blockDim.x) >> Log(of_row);
  }

  // Sums a chunk, and merges it with those before it.
  template <typename Tile>
  __device__ void Sum(const Tile& tile, bool first_chunk) const {
    const int elements = tile.elements();
    // The lanes of a warp stay together: those after the last row take part.
#pragma unroll 1
    for (int first = 0; first < place_.rows(); first += rows_at_once_) {
      const bool exists = first + row_ < place_.rows();
      const int row = min(first + row_, place_.rows() - 1);
      const Moments<float> own = OwnMoments(tile.RowAddress(row), elements);
      const float count = parts_ > 1 ? GroupSum(own.count, kLanes) : static_cast<float>(elements);
      const Moments<float> merged = lanes_ == kLanes
                                        ? MergeStatistics(batch_.statistics, own, count, kLanes)
                                        : MergeStatistics(batch_.statistics, own, count, lanes_);
      if (!exists || (first_ & (lanes_ - 1)) != 0) continue;
      Moments<float>& partial = statistics_.partials[row * parts_ + first_ / lanes_];
      partial = first_chunk ? merged : MergeStatistics(batch_.statistics, partial, merged);
    }
  }

  // Computes the normalization of each row. Call after a barrier.
  __device__ void Finish(std::int64_t first_number) const {
    const int thread = static_cast<int>(threadIdx.x);
    const int part = thread & (parts_ - 1);
    const int step = static_cast<int>(blockDim.x) >> Log(parts_);
#pragma unroll 1
    for (int first = 0; first < place_.rows(); first += step) {
      const int wanted = first + (thread >> Log(parts_));
      const int row = min(wanted, place_.rows() - 1);
      Moments<float> all = statistics_.partials[row * parts_ + part];
      if (parts_ > 1) {
        all = MergeStatistics(batch_.statistics, all, static_cast<float>(batch_.channels), parts_);
      }
      if (part != 0 || wanted >= place_.rows()) continue;
      const RowScale<float> scale = FinishStatistics(batch_.statistics, all, batch_.eps);
      statistics_.scales[row] = scale;
      WriteStatistics(batch_, {place_.segment, 0, 0, 0, first_number + row}, all, scale);
    }
  }

  // Turns a chunk into results. Call after a barrier.
  template <typename Tile>
  __device__ void Scale(const Tile& tile) const {
    const int vectors = (tile.elements() + kCount - 1) / kCount;
#pragma unroll 1
    for (int row = row_; row < place_.rows(); row += rows_at_once_) {
      const RowScale<float> scale = statistics_.scales[row];
      const float shift = -scale.residue * scale.rstd;
      const std::uint32_t begin = tile.RowAddress(row);
#pragma unroll 1
      for (int vector = first_; vector < vectors; vector += lanes_ * parts_) {
        const std::uint32_t address = begin + vector * kVectorBytes;
        float values[kCount];
        Unpack<T>(ReadShared(address), values);
        if (batch_.statistics == Statistics::kMeanVariance) {
#pragma unroll
          for (float& value : values) value = Fma(value - scale.mean, scale.rstd, shift);
        } else {
#pragma unroll
          for (float& value : values) value *= scale.rstd;
        }
        if (params_ == TileParams::kOwnType) {
          ScaleBy<T>(tile.first_channel() + vector * kCount, values);
        } else if (params_ == TileParams::kFloat) {
          ScaleBy<float>(tile.first_channel() + vector * kCount, values);
        } else if (batch_.affine) {
          Modulate(tile.first_channel() + vector * kCount, tile.elements() - vector * kCount,
                   tile.sample(row), values);
        }
        if (batch_.activation != Activation::kNone) {
          Activate<float>(batch_.activation, batch_.leaky_slope.narrow, values);
        }
        WriteShared(address, Pack<T>(values));
      }
    }
  }

 private:
  // For a power of two.
  __device__ static int Log(int value) { return 31 - __clz(value); }

  // The statistics of the thread's vectors of a row: first the whole ones, then the last.
  __device__ Moments<float> OwnMoments(std::uint32_t row, int elements) const {
    const int step = lanes_ * parts_;
    const int whole = elements / kCount;
    Moments<float> total;
#pragma unroll 1
    for (int first = first_; first < whole; first += kFewVectors * step) {
      Vector held[kFewVectors];
#pragma unroll
      for (int i = 0; i < kFewVectors; ++i) {
        const int vector = min(first + i * step, whole - 1);
        held[i] = ReadShared(row + vector * kVectorBytes);
      }
      total = MergeStatistics(batch_.statistics, total,
                              MomentsOf(
                                  held, [&](int i) { return first + i * step < whole; },
                                  std::integral_constant<int, kCount>()));
    }
    const int rest = elements - whole * kCount;
    if (rest > 0 && (whole & (step - 1)) == first_) {
      const Vector held[1] = {ReadShared(row + whole * kVectorBytes)};
      total = MergeStatistics(batch_.statistics, total,
                              MomentsOf(
                                  held, [](int) { return true; }, rest));
    }
    return total;
  }

  // The statistics of the first `present` elements of each vector that exists.
  template <int kVectors, typename Exists, typename Count>
  __device__ Moments<float> MomentsOf(const Vector (&held)[kVectors], Exists exists,
                                      Count present) const {
    return MomentsOfVectors<T, kVectors, false>(
        batch_.statistics, [&](int i, float(&values)[kCount]) { Unpack<T>(held[i], values); },
        [&](int i) { return exists(i) ? static_cast<int>(present) : 0; });
  }

  // Scales and shifts the elements of the channels from `channel` on by gamma and beta of type P.
  template <typename P>
  __device__ void ScaleBy(int channel, float (&values)[kCount]) const {
    const bool scaled = batch_.gamma.data != nullptr;
    const bool shifted = batch_.beta.data != nullptr;
    const P* const gamma = static_cast<const P*>(batch_.gamma.data) + channel;
    const P* const beta = static_cast<const P*>(batch_.beta.data) + channel;
#pragma unroll
    for (int i = 0; i < kCount; i += kPerVector<P>) {
      const Vector none = make_uint4(0, 0, 0, 0);
      const Vector own_gamma = scaled ? __ldg(reinterpret_cast<const uint4*>(gamma + i)) : none;
      const Vector own_beta = shifted ? __ldg(reinterpret_cast<const uint4*>(beta + i)) : none;
      float factor[kPerVector<P>], offset[kPerVector<P>];
      Unpack<P>(own_gamma, factor);
      Unpack<P>(own_beta, offset);
#pragma unroll
      for (int j = 0; j < kPerVector<P>; ++j) {
        values[i + j] = Fma(values[i + j], scaled ? factor[j] : 1.0f, offset[j]);
      }
    }
  }

  // Scales and shifts the elements of the channels from `channel` on; `left` of them exist.
  __device__ void Modulate(int channel, int left, std::uint32_t sample,
                           float (&values)[kCount]) const {
    const StageSegment& segment = *place_.segment;
    const int present = min(left, kCount);
    const std::int64_t of_sample = sample * batch_.channels + channel;
    float factor[kCount], offset[kCount];
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      factor[j] = 1;
      offset[j] = 0;
    }
#pragma unroll 1
    for (int step = 0; step < 4; ++step) {
      const void* const data = step == 2 ? segment.scale : segment.shift;
      const ParamVector param = step == 0   ? batch_.gamma
                                : step == 1 ? batch_.beta
                                            : ParamVector{data, batch_.dtype};
      if (param.data == nullptr) continue;
      float own[kCount];
      LoadParams(param, step < 2 ? channel : of_sample, present, 0.0f, own);
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        switch (step) {
          case 0: factor[j] = own[j] + batch_.weight_offset.narrow; break;
          case 1: offset[j] = own[j]; break;
          case 2: {
            const float by = batch_.scale_offset.narrow + own[j];
            factor[j] *= by;
            if (batch_.beta.data != nullptr) offset[j] *= by;
            break;
          }
          default: offset[j] += own[j];
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kCount; ++j) values[j] = Fma(values[j], factor[j], offset[j]);
  }

  const StageBatch& batch_;
  const TilePlace& place_;
  TileStatistics& statistics_;
  const TileParams params_;
  const int lanes_;
  const int parts_;
  int first_;  // The thread's first vector of a row.
  int row_;    // Its first row.
  int rows_at_once_;
};

template <typename T, TileUnit kUnit>
__global__ void __launch_bounds__(kMostTileThreads,
                                  MinBlocks(kBlocksOfMultiprocessor, kMostTileThreads))
    MixedRunsRows(const __grid_constant__ StageBatch batch, const __grid_constant__ TileCut cut) {
  extern __shared__ float4 tile_memory[];
  __shared__ TileRows rows;
  __shared__ TileStatistics statistics;
  const TilePlace place = FindTile(batch, cut, blockIdx.x);
  MixedRunsTile<T, kUnit> tile(batch, cut, place, tile_memory, rows);
  const TileWorker<T> worker(batch, cut, place, statistics);
  tile.FindRows();
#pragma unroll 1
  for (int chunk = 0; chunk < cut.chunks; ++chunk) {
    tile.Begin(chunk);
    __syncthreads();
    if (chunk == 0) AwaitPreviousKernel();
    tile.CopyIn(false);
    __syncthreads();
    worker.Sum(tile, chunk == 0);
  }
  __syncthreads();
  worker.Finish(std::int64_t{place.first_run} * cut.run_positions + place.first_position);
  __syncthreads();
  // The last chunk is still there.
#pragma unroll 1
  for (int chunk = cut.chunks - 1;; --chunk) {
    worker.Scale(tile);
    __syncthreads();
    tile.CopyOut();
    if (chunk == 0) return;
    __syncthreads();
    tile.Begin(chunk - 1);
    __syncthreads();
    tile.CopyIn(true);
    __syncthreads();
  }
}

// 16 bytes move at once if all lines of all tensors begin at multiples of 16 bytes, else elements.
TileUnit ChooseUnit(const StageBatch& batch, const MixedRunsPlan& plan) {
  const int count = kVectorBytes / static_cast<int>(SizeOf(batch.dtype));
  bool aligned = true;
  for (int i = 0; i < batch.segment_count; ++i) {
    const StageSegment& segment = batch.segments[i];
    for (const void* tensor :
         {static_cast<const void*>(segment.x), static_cast<const void*>(segment.y),
          static_cast<const void*>(segment.residual),
          static_cast<const void*>(segment.residual_out)}) {
      aligned = aligned && IsAligned(tensor, 0);
    }
  }
  if (aligned && plan.run % count == 0) return TileUnit::kVector;
  const bool whole_lines = std::int64_t{plan.run} * plan.run_positions % count == 0 &&
                           std::int64_t{plan.run} * plan.positions % count == 0 &&
                           plan.elements == plan.run;
  return aligned && whole_lines ? TileUnit::kSplitVector : TileUnit::kElement;
}

TileParams ChooseParams(const StageBatch& batch, const MixedRunsPlan& plan) {
  const int count = kVectorBytes / static_cast<int>(SizeOf(batch.dtype));
  const ParamVector& first = batch.gamma.data != nullptr ? batch.gamma : batch.beta;
  const ParamVector& second = batch.beta.data != nullptr ? batch.beta : first;
  const bool whole =
      batch.channels % count == 0 && (plan.elements == plan.run || plan.run % count == 0);
  if (first.data == nullptr || batch.scale || batch.shift || batch.weight_offset.narrow != 0 ||
      !whole || first.dtype != second.dtype || !IsAligned(first.data, 0) ||
      !IsAligned(second.data, 0)) {
    return TileParams::kAny;
  }
  if (first.dtype == batch.dtype) return TileParams::kOwnType;
  return first.dtype == DType::kFloat32 ? TileParams::kFloat : TileParams::kAny;
}

TileCut CutTiles(const StageBatch& batch, const MixedRunsPlan& plan, std::int64_t spatial,
                 TileUnit unit) {
  const auto divisor = [](std::int64_t value) {
    return Divisor(static_cast<std::uint32_t>(value));
  };
  TileCut cut = {};
  const int count = kVectorBytes / static_cast<int>(SizeOf(batch.dtype));
  cut.units = divisor(std::int64_t{plan.positions} * plan.elements /
                      (unit == TileUnit::kElement ? 1 : count));
  cut.runs = divisor(plan.runs);
  cut.run = divisor(plan.run);
  cut.tiles = divisor((plan.run_positions + plan.positions - 1) / plan.positions);
  cut.runs_of_sample = divisor(spatial / plan.run_positions);
  cut.positions = plan.positions;
  cut.run_positions = plan.run_positions;
  cut.lines = plan.lines;
  cut.elements = plan.elements;
  cut.chunks = plan.chunks;
  cut.row_stride = plan.row_stride;
  cut.lanes = plan.lanes;
  cut.parts = plan.parts;
  cut.params = ChooseParams(batch, plan);
  return cut;
}

using Kernel = void (*)(const StageBatch, const TileCut);

template <typename T>
Kernel KernelOf(TileUnit unit) {
  switch (unit) {
    case TileUnit::kVector: return MixedRunsRows<T, TileUnit::kVector>;
    case TileUnit::kSplitVector: return MixedRunsRows<T, TileUnit::kSplitVector>;
    default: return MixedRunsRows<T, TileUnit::kElement>;
  }
}
Kernel KernelOf(DType dtype, TileUnit unit) {
  return WithNarrowType(
      dtype, [&](auto element) { return KernelOf<typename decltype(element)::Type>(unit); });
}

}  // namespace

cudaError_t PrepareMixedRuns(const DeviceLimits& limits) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (const TileUnit unit : {TileUnit::kVector, TileUnit::kSplitVector, TileUnit::kElement}) {
      const cudaError_t error = AllowSharedBytes(KernelOf(dtype, unit), limits);
      if (error != cudaSuccess) return error;
    }
  }
  return cudaSuccess;
}

bool TakesMixedRuns(const Launch& launch, const StageBatch& batch) {
  return batch.places == RowPlaces::kMixedRuns && batch.input_bias.data == nullptr &&
         TilesMixedRuns(launch.spec, launch.segments[0].spatial);
}

cudaError_t LaunchMixedRuns(const Launch& launch, StageBatch batch) {
  const Segment& segment = launch.segments[0];
  const MixedRunsPlan plan = PlanMixedRuns(launch.spec, segment.spatial_runs, launch.limits);
  const TileUnit unit = ChooseUnit(batch, plan);
  const TileCut cut = CutTiles(batch, plan, segment.spatial, unit);
  // Tiles take the place of rows.
  const auto runs = static_cast<std::uint32_t>(plan.runs);
  const auto tiles =
      static_cast<std::uint32_t>((plan.run_positions + plan.positions - 1) / plan.positions);
  std::uint32_t rows = 0;
  std::uint32_t all_runs = 0;
  std::uint32_t blocks = 0;
  for (int i = 0; i < batch.segment_count; ++i) {
    StageSegment& entry = batch.segments[i];
    const std::uint32_t own = (entry.end_row - rows) / static_cast<unsigned>(plan.run_positions);
    rows = entry.end_row;
    all_runs += own;
    blocks += (own + runs - 1) / runs * tiles;
    entry.end_run = all_runs;
    entry.end_row = blocks;
  }
  batch.rows = blocks;
  const LaunchShape shape = {blocks, dim3(static_cast<unsigned>(plan.threads)), plan.shared_bytes};
  return LaunchOverlapping(launch.limits, launch.stream, shape, KernelOf(launch.spec.dtype, unit),
                           batch, cut);
}

}  // namespace normd::norm::cuda
