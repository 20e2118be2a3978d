// One call of Executor::Normalize, as the parts of the CPU backend see it.

#ifndef NORMD_KERNELS_CPU_BATCH_H_
#define NORMD_KERNELS_CPU_BATCH_H_

#include <cmath>
#include <cstdint>

#include "kernels/cpu/moments.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/params.h"
#include "kernels/cpu/simd_kernels.h"
#include "kernels/norm.h"

namespace normd::norm::cpu {

struct CacheSizes {
  std::int64_t per_core_bytes = 0;
  std::int64_t last_level_bytes = 0;
};

// Parameters in the form that the loops take. Borrows from its source.
struct Params {
  Params(const NormSpec& spec, const NormParams& source)
      : gamma(source.gamma, spec.channels, spec.weight_offset),
        beta(source.beta, spec.channels),
        mean(source.mean, spec.channels),
        variance(source.variance, spec.channels) {}

  // For segments whose normalization is elementwise.
  void PrepareElements(DType dtype) {
    element_gamma = gamma.AsAccumulationType(dtype);
    element_beta = beta.AsAccumulationType(dtype);
  }

  Param gamma;
  Param beta;
  Param mean;
  Param variance;
  // gamma and beta in the accumulation type, once prepared.
  const void* element_gamma = nullptr;
  const void* element_beta = nullptr;
};

// One segment with what it shares with others. Constant while it is computed, and used by all its
// threads.
struct Batch {
  const NormSpec& spec;
  const Params& params;
  const SimdKernels* kernels = nullptr;
  Parallel parallel;
  CacheSizes caches;
  bool exceeds_caches = false;

  // The same for another spec and its parameters, which must outlive it.
  Batch With(const NormSpec& other, const Params& its_params) const {
    return {other, its_params, kernels, parallel, caches, exceeds_caches};
  }
};

inline bool IsCentered(const NormSpec& spec) {
  return spec.statistics == Statistics::kMeanVariance;
}

// What a row's statistics make of its elements: (x - mean) * rstd.
struct RowStatistics {
  double mean = 0;
  double rstd = 1;
};

// 1 / max(norm, eps); a NaN stays one.
inline double ReciprocalOfNorm(double norm, double eps) { return 1 / (norm < eps ? eps : norm); }

inline RowStatistics Finish(const Moments& moments, double eps) {
  return {moments.mean, 1 / std::sqrt(moments.m2 / moments.count + eps)};
}

// With Statistics::kMeanVariance, kMeanSquare and kRootOfSquares.
inline RowStatistics Finish(const Moments& moments, const NormSpec& spec) {
  if (spec.statistics != Statistics::kRootOfSquares) return Finish(moments, spec.eps);
  return {0, ReciprocalOfNorm(std::sqrt(moments.m2), spec.eps)};
}

// To the outputs that the segment asks for.
inline void WriteStatistics(const NormSpec& spec, const Segment& segment, std::int64_t row,
                            const RowStatistics& statistics) {
  const auto write = [&](void* out, double value) {
    if (out == nullptr) return;
    if (spec.dtype == DType::kFloat64) {
      static_cast<double*>(out)[row] = value;
    } else {
      static_cast<float*>(out)[row] = static_cast<float>(value);
    }
  };
  write(segment.mean_out, statistics.mean);
  write(segment.rstd_out, statistics.rstd);
}

// The channel's transformation, given statistics included.
inline Affine ChannelAffine(const Batch& batch, const RowStatistics& row, std::int64_t channel) {
  return {row.mean, row.rstd * batch.params.gamma.At(channel, 1), batch.params.beta.At(channel, 0)};
}
inline Affine GivenAffine(const Batch& batch, std::int64_t channel) {
  const double variance = batch.params.variance.At(channel, 1);
  const RowStatistics row{batch.params.mean.At(channel, 0),
                          1 / std::sqrt(variance + batch.spec.eps)};
  return ChannelAffine(batch, row, channel);
}

// Where the elements lie that are normalized: with a residual input, where AddResidual writes them.
inline const void* Source(const Batch& batch, const Segment& segment) {
  if (!batch.spec.residual) return segment.x;
  return batch.spec.residual_out ? segment.residual_out : segment.y;
}

// Makes elements [first, first + count) of Source, which must be done before they are read.
inline void AddResidual(const Batch& batch, const Segment& segment, std::int64_t first,
                        std::int64_t count) {
  if (!batch.spec.residual) return;
  const std::int64_t offset = first * static_cast<std::int64_t>(SizeOf(batch.spec.dtype));
  void* const sum = const_cast<void*>(Source(batch, segment));
  batch.kernels->add(static_cast<const char*>(segment.x) + offset,
                     static_cast<const char*>(segment.residual) + offset,
                     static_cast<char*>(sum) + offset, count);
}

// A run with the batch's epilogue; elements are counted from the segment's first.
inline Run MakeRun(const Batch& batch, const Segment& segment, std::int64_t first,
                   std::int64_t count) {
  const std::int64_t offset = first * static_cast<std::int64_t>(SizeOf(batch.spec.dtype));
  Run run;
  run.x = static_cast<const char*>(Source(batch, segment)) + offset;
  run.y = static_cast<char*>(segment.y) + offset;
  run.count = count;
  run.epilogue = {batch.spec.activation, batch.spec.leaky_slope};
  // In place, the lines are in the cache already and a store past it would only throw them out.
  run.stream = batch.exceeds_caches && Source(batch, segment) != segment.y;
  return run;
}

// What specialised kernels compute: rows of groups, gamma and beta for all samples. The choice
// between the three below.
void NormalizePlain(const Batch& batch, const Segment& segment);

// Segments whose rows, or whose channels' runs, are contiguous: channels first, and spatial == 1.
void NormalizeContiguous(const Batch& batch, const Segment& segment);

// Channels last, with each row's own statistics.
void NormalizeChannelsLast(const Batch& batch, const Segment& segment);

// Given statistics where channels are adjacent: channels last, and spatial == 1.
void NormalizeGivenChannelsLast(const Batch& batch, const Segment& segment);

// Layout::kInterleaved; batch.params is not used.
void NormalizeInterleaved(const Batch& batch, const NormParams& params, const Segment& segment);

// Whatever a valid spec of another layout asks for; batch.params is not used.
void NormalizeStaged(const Batch& batch, const NormParams& params, const Segment& segment);

}  // namespace normd::norm::cpu

#endif  // NORMD_KERNELS_CPU_BATCH_H_
