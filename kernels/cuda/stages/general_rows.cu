// Any rows with any stages: computes whatever no other kernel can, and statistics that the
// kernels of y do not write.
//
// Phases: a team (lanes of a warp, or a block) reads its row in chunks of the plan's vectors for
// each thread, takes its statistics, and writes residual_out. With Style::kTensor it first does the
// same with the row's style tensor. Then it reads the row again and writes the results; if a row
// has a scale of its own, it first reads it once more for the largest result.
// Bytes: rows up to some 100 KiB come from the caches when they are read again. Elements are read
// in 16-byte vectors if rows are contiguous at suitable addresses, else one by one.
// Determinism: the plan cuts rows for this kernel, register_rows.cu and quantized_rows.cu alike,
// and all add in the same order. A row thus has the same bits at addresses that only this kernel
// takes.

#include <cuda_runtime.h>

#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/stages/stage_elements.cuh"
#include "kernels/cuda/stages/stage_launch.cuh"

namespace normd::norm::cuda {
namespace {

// Calls visit(at) for each of a thread's vectors, even those without present elements, in the whole
// chunks of a row of `length` elements, of which `elements` exist.
template <typename T, typename Visit>
__device__ inline void ForVectors(const StageTeam<>& team, std::int64_t length,
                                  std::int64_t elements, Visit visit) {
  constexpr int kCount = kPerVector<T>;
  const std::int64_t chunk = std::int64_t{team.vectors} * team.size() * kCount;
  for (std::int64_t begin = 0; begin < length; begin += chunk) {
#pragma unroll 1
    for (int i = 0; i < team.vectors; ++i) {
      const std::int64_t first = begin + (std::int64_t{i} * team.size() + team.thread) * kCount;
      const std::int64_t left = elements - first;
      visit(StageElements{first, static_cast<int>(left < 0 ? 0 : left < kCount ? left : kCount)});
    }
  }
}

// Sums a thread's elements vector by vector, if the order allows it: relative to the mean of the
// first vector of each chunk.
template <typename T>
class StreamedSums {
 public:
  using A = Accumulator<T>;
  static constexpr int kCount = kPerVector<T>;

  __device__ explicit StreamedSums(Statistics statistics) : statistics_(statistics) {}

  __device__ void Add(const A (&values)[kCount], int present) {
    if (present == 0) return;
    if (count_ == 0) reference_ = MeanOfHead<T>(values, present);
    count_ += present;
    if (statistics_ == Statistics::kMeanVariance) {
      AddDeviations<T>(values, present, reference_, 0, sums_, squares_);
    } else {
      AddUncentered<T, true>(statistics_, values, present, squares_, &largest_);
    }
  }
  // The moments of the chunk that ends here.
  __device__ Moments<A> Finish() {
    const Moments<A> moments = statistics_ == Statistics::kMeanVariance
                                   ? MomentsOfSums(reference_, sums_[0] + sums_[1],
                                                   squares_[0] + squares_[1], count_, true)
                                   : UncenteredMoments<A>(statistics_, squares_, largest_, count_);
    *this = StreamedSums(statistics_);
    return moments;
  }

 private:
  Statistics statistics_;
  int count_ = 0;
  A reference_ = 0;
  A sums_[2] = {0, 0};
  A squares_[2] = {0, 0};
  MagnitudeBits<A> largest_ = 0;
};

// The same with the mean of a chunk as reference, which stays in registers for that. The vectors
// move up: a variable index would put them into memory.
template <typename T>
class HeldSums {
 public:
  using A = Accumulator<T>;
  static constexpr int kCount = kPerVector<T>;

  __device__ explicit HeldSums(Statistics statistics) : statistics_(statistics) {}

  __device__ void Add(const A (&values)[kCount], int present) {
#pragma unroll
    for (int i = 0; i + 1 < kManyVectors; ++i) {
      present_[i] = present_[i + 1];
#pragma unroll
      for (int j = 0; j < kCount; ++j) chunk_[i][j] = chunk_[i + 1][j];
    }
    present_[kManyVectors - 1] = present;
#pragma unroll
    for (int j = 0; j < kCount; ++j) chunk_[kManyVectors - 1][j] = values[j];
  }
  __device__ Moments<A> Finish() {
    const Moments<A> moments = MomentsOfVectors<T, kManyVectors>(
        statistics_,
        [&](int i, A(&values)[kCount]) {
#pragma unroll
          for (int j = 0; j < kCount; ++j) values[j] = chunk_[i][j];
        },
        [&](int i) { return present_[i]; });
#pragma unroll
    for (int& present : present_) present = 0;
    return moments;
  }

 private:
  const Statistics statistics_;
  A chunk_[kManyVectors][kCount] = {};
  int present_[kManyVectors] = {};
};

// The statistics of a thread's part of a row: input(at, values) gives its elements.
template <typename T, typename Input>
__device__ inline Moments<Accumulator<T>> OwnStatistics(Statistics statistics,
                                                        const StageTeam<>& team,
                                                        std::int64_t elements, Input input) {
  using A = Accumulator<T>;
  using Sums = std::conditional_t<kMeanReference<T>, HeldSums<T>, StreamedSums<T>>;
  Moments<A> total;
  Sums sums(statistics);
  int held = 0;
  ForVectors<T>(team, elements, elements, [&](const StageElements& at) {
    A values[kPerVector<T>];
    input(at, values);
    sums.Add(values, at.present);
    if (++held < team.vectors) return;
    held = 0;
    total = MergeStatistics(statistics, total, sums.Finish());
  });
  return total;
}

// Merges a team's parts of a row of `elements` elements.
template <typename A>
__device__ inline Moments<A> MergeOwn(Statistics statistics, const Moments<A>& own,
                                      std::int64_t elements, const StageTeam<>& team,
                                      WarpPartials<Moments<A>>& partials) {
  // Sums without a mean need no count until the end.
  const bool counted = team.warps > 0 && statistics == Statistics::kMeanVariance;
  const A count = counted ? GroupSum(own.count, kLanes) : A(1);
  return MergeTeam(statistics, own, count, static_cast<A>(elements), team, partials);
}

// The deviation and the mean of the row's channel of the second tensor.
template <typename T>
struct StyleOfRow {
  Accumulator<T> deviation;
  Accumulator<T> mean;
};

template <typename T>
__device__ inline StyleOfRow<T> TakeStyle(const StageBatch& batch, const StageRow& row,
                                          const StageTeam<>& team, bool exists,
                                          WarpPartials<Moments<Accumulator<T>>>& partials) {
  using A = Accumulator<T>;
  constexpr int kCount = kPerVector<T>;
  const std::int64_t elements = row.segment->style_spatial;
  const bool last = batch.style_channels_last;
  const T* const style = static_cast<const T*>(row.segment->style) +
                         (last ? row.sample * elements * batch.channels + row.first_channel
                               : (row.sample * batch.channels + row.first_channel) * elements);
  const std::int64_t stride = last ? batch.channels : 1;
  const Moments<A> own = OwnStatistics<T>(
      Statistics::kMeanVariance, team, exists ? elements : 0,
      [&](const StageElements& at, A(&values)[kCount]) {
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          values[i] = i < at.present ? Widen(style[(at.first + i) * stride]) : A(0);
        }
      });
  const Moments<A> all = MergeOwn(Statistics::kMeanVariance, own, elements, team, partials);
  return {DeviationOf(all, batch.eps), all.reference + all.mean};
}

// Takes the team's row from its statistics to its results.
template <typename T, Samples kSamples>
class RowOutput {
 public:
  using A = Accumulator<T>;
  static constexpr int kCount = kPerVector<T>;

  __device__ RowOutput(const StageBatch& batch, const StageRow& row, const StageTeam<>& team,
                       std::int64_t elements, const RowScale<A>& scale, const StyleOfRow<T>& style)
      : batch_(batch),
        row_(row),
        team_(team),
        access_(batch, row),
        elements_(elements),
        scale_(scale),
        style_(style) {}

  __device__ void Write() const {
    ForVectors<T>(team_, row_.segment->elements, elements_, [&](const StageElements& at) {
      A values[kCount];
      Results(at, values);
      access_.Store(YOf<kSamples>(batch_, row_), at, values);
    });
  }

  __device__ void WriteQuantized(WarpPartials<MagnitudeBits<A>>& partials) const {
    A factor = batch_.quantization_factor.template As<A>();
    if (batch_.quantization_scale == QuantizationScale::kRow) {
      MagnitudeBits<A> largest = 0;
      ForVectors<T>(team_, row_.segment->elements, elements_, [&](const StageElements& at) {
        A values[kCount];
        AlmostResults(at, values);
        largest = LargestMagnitude(values, at.present, largest);
      });
      largest = LargestOfTeam(largest, team_, partials);
      const QuantizationFactor<A> own(batch_.quantization, FromMagnitude(largest) * remaining());
      factor = own.factor;
      if (team_.thread == 0 && elements_ > 0) row_.segment->scale_out[row_.number] = own.scale;
    }
    ForVectors<T>(team_, row_.segment->elements, elements_, [&](const StageElements& at) {
      A values[kCount];
      Results(at, values);
      access_.StoreQuantized(at, values, factor);
    });
  }

  // Blocks are vectors of adjacent lanes. With float64, half a block is the team's lanes that
  // differ in bit 5 of the vector's number; each lane computes their results as well.
  __device__ void WriteBlocks() const {
    constexpr int kVectors = static_cast<int>(kQuantizationBlock) / kCount;
    constexpr int kOthers = 32;
    const int lanes = min(team_.width, min(kVectors, kLanes));
    if (kVectors > kLanes && batch_.residual_out) {
      if (team_.warps == 0) {
        __syncwarp();
      } else {
        __syncthreads();
      }
    }
    ForVectors<T>(team_, row_.segment->elements, elements_, [&](const StageElements& at) {
      A values[kCount];
      AlmostResults(at, values);
      MagnitudeBits<A> largest = LargestMagnitude(values, at.present, MagnitudeBits<A>(0));
      if constexpr (kVectors > kLanes) {
        const std::int64_t first = (at.first / kCount ^ kOthers) * kCount;
        const std::int64_t left = elements_ - first;
        const StageElements other = {first, static_cast<int>(left < 0        ? 0
                                                             : left < kCount ? left
                                                                             : kCount)};
        A others[kCount];
        AlmostResults(other, others);
        largest = LargestMagnitude(others, other.present, largest);
      }
      largest = LargestOfLanes(largest, lanes);
      const QuantizationFactor<A> own(batch_.quantization, FromMagnitude(largest) * remaining());
      Complete(values);
      access_.StoreQuantized(at, values, own.factor);
      if (at.present > 0 && at.first % kQuantizationBlock == 0) {
        row_.segment
            ->scale_out[row_.number * QuantizationBlocks(row_) + at.first / kQuantizationBlock] =
            own.scale;
      }
    });
  }

 private:
  // What is left to multiply AlmostResults with.
  __device__ A remaining() const { return batch_.scaled_first ? scale_.rstd : A(1); }

  __device__ void AlmostResults(const StageElements& at, A (&values)[kCount]) const {
    access_.Input(at, batch_.residual_out, values);
    if (batch_.scaled_first) {
      access_.ScaleFirst(at, values);
    } else {
      access_.Result(at, scale_, style_.deviation, style_.mean, values);
    }
  }
  __device__ void Complete(A (&values)[kCount]) const {
    if (!batch_.scaled_first) return;
#pragma unroll
    for (A& value : values) value *= scale_.rstd;
  }
  __device__ void Results(const StageElements& at, A (&values)[kCount]) const {
    AlmostResults(at, values);
    Complete(values);
  }

  const StageBatch& batch_;
  const StageRow& row_;
  const StageTeam<>& team_;
  const StageAccess<T, kSamples> access_;
  const std::int64_t elements_;
  const RowScale<A>& scale_;
  const StyleOfRow<T>& style_;
};

template <typename T, Samples kSamples>
__global__ void __launch_bounds__(kStageWarps* kLanes)
    GeneralRows(const __grid_constant__ StageBatch batch, const int width, const int warps,
                const int vectors) {
  using A = Accumulator<T>;
  constexpr int kCount = kPerVector<T>;
  __shared__ WarpPartials<Moments<A>> style_partials;
  __shared__ WarpPartials<Moments<A>> partials;
  __shared__ WarpPartials<MagnitudeBits<A>> largest;
  const StageTeam<> team(width, warps, vectors);
  const std::uint32_t index =
      warps == 0 ? blockIdx.x * (kTeamThreads / width) + threadIdx.x / width : blockIdx.x;
  // Lanes after the last row take part: shuffles need the whole warp.
  const bool exists = index < batch.rows;
  const StageRow row = FindStageRow(batch, exists ? index : batch.rows - 1);
  const std::int64_t elements = exists ? row.segment->elements : 0;
  const StageAccess<T, kSamples> access(batch, row);
  AwaitPreviousKernel();

  StyleOfRow<T> style = {A(1), A(0)};
  if (batch.style == Style::kTensor && !batch.only_statistics) {
    style = TakeStyle<T>(batch, row, team, exists, style_partials);
  }
  RowScale<A> scale;
  if (batch.statistics != Statistics::kGiven) {
    const Moments<A> own = OwnStatistics<T>(batch.statistics, team, elements,
                                            [&](const StageElements& at, A(&values)[kCount]) {
                                              access.Input(at, false, values);
                                              if (batch.residual_out)
                                                access.Store(row.segment->residual_out, at, values);
                                            });
    const Moments<A> all = MergeOwn(batch.statistics, own, row.segment->elements, team, partials);
    scale = FinishStatistics(batch.statistics, all, batch.eps);
    if (team.thread == 0 && exists) WriteStatistics(batch, row, all, scale);
  } else if (batch.residual_out) {
    ForVectors<T>(team, elements, elements, [&](const StageElements& at) {
      A values[kCount];
      access.Input(at, false, values);
      access.Store(row.segment->residual_out, at, values);
    });
  }
  if (batch.only_statistics) return;
  const RowOutput<T, kSamples> output(batch, row, team, elements, scale, style);
  if (batch.quantization == Quantization::kNone) {
    output.Write();
  } else if (batch.quantization_scale == QuantizationScale::kBlock) {
    output.WriteBlocks();
  } else {
    output.WriteQuantized(largest);
  }
}

}  // namespace

cudaError_t LaunchGeneralRows(const Launch& launch, const StageBatch& batch) {
  return WithElementType(launch.spec.dtype, [&](auto element) {
    using T = typename decltype(element)::Type;
    const int vectors = launch.plan.vectors;
    return batch.has_gaps
               ? LaunchTeams(launch, batch, GeneralRows<T, Samples::kBetweenGaps>, vectors)
               : LaunchTeams(launch, batch, GeneralRows<T, Samples::kTogether>, vectors);
  });
}

}  // namespace normd::norm::cuda
