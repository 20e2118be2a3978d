// One call of Executor::Normalize, as the parts of the CPU backend see it.

#ifndef NORMD_KERNELS_CPU_BATCH_H_
#define NORMD_KERNELS_CPU_BATCH_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/cpu/moments.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/params.h"
#include "kernels/cpu/simd_kernels.h"
#include "kernels/norm.h"
#include "kernels/sample_range.h"

namespace normd::norm::cpu {

struct CacheSizes {
  std::int64_t per_core_bytes = 0;
  std::int64_t last_level_bytes = 0;
};

// Parameters in the form that the loops take. Borrows from its source.
struct Params {
  Params(const NormSpec& spec, const NormParams& source)
      : Params(spec, source, spec.channels * std::max<std::int64_t>(spec.styles, 1)) {}

  // For segments whose normalization is elementwise.
  void PrepareElements(DType dtype) {
    element_gamma = gamma.AsAccumulationType(dtype);
    element_beta = beta.AsAccumulationType(dtype);
  }

  Param gamma;  // With styles, a table. Includes the offset, but not before a mix.
  Param beta;   // With styles, a table.
  Param mean;
  Param variance;
  Param input_bias;
  const void* element_input_bias;  // In the accumulation type; null if absent.
  // gamma and beta in the accumulation type, once prepared.
  const void* element_gamma = nullptr;
  const void* element_beta = nullptr;

 private:
  Params(const NormSpec& spec, const NormParams& source, std::int64_t table)
      : gamma(source.gamma, table, spec.style == Style::kMix ? 0 : spec.weight_offset),
        beta(source.beta, table),
        mean(source.mean, spec.channels),
        variance(source.variance, spec.channels),
        input_bias(source.input_bias, spec.channels),
        element_input_bias(input_bias.AsAccumulationType(spec.dtype)) {}
};

// One segment with the parts it shares with others. Constant while it is computed, and used by all
// its threads.
struct Batch {
  const NormSpec& spec;
  const Params& params;
  const SimdKernels* kernels = nullptr;
  Parallel parallel;
  CacheSizes caches;
  bool exceeds_caches = false;

  // Bytes of an element of the accumulation type.
  std::int64_t acc_bytes() const { return spec.dtype == DType::kFloat64 ? 8 : 4; }

  // The same for another spec and its parameters, which must outlive it.
  Batch With(const NormSpec& other, const Params& its_params) const {
    return {other, its_params, kernels, parallel, caches, exceeds_caches};
  }
};

inline bool IsCentered(const NormSpec& spec) {
  return spec.statistics == Statistics::kMeanVariance;
}

// Normalizes the elements of a row: (x - mean) * rstd.
struct RowStatistics {
  double mean = 0;
  double rstd = 1;
};

// 1 / max(norm, eps); a NaN stays a NaN.
inline double ReciprocalOfNorm(double norm, double eps) { return 1 / (norm < eps ? eps : norm); }

inline RowStatistics Finish(const Moments& moments, double eps) {
  return {moments.mean, 1 / std::sqrt(moments.m2 / moments.count + eps)};
}

// For Statistics::kMeanVariance, kMeanSquare and kRootOfSquares.
inline RowStatistics Finish(const Moments& moments, const NormSpec& spec) {
  if (spec.statistics == Statistics::kRootOfSquares) {
    return {0, ReciprocalOfNorm(std::sqrt(moments.m2), spec.eps)};
  }
  // float64 deviations whose squares overflow give NaN, not zeros, as in PyTorch.
  if (std::isinf(moments.m2) && IsCentered(spec)) {
    return {moments.mean, std::numeric_limits<double>::quiet_NaN()};
  }
  return Finish(moments, spec.eps);
}

// Writes to the outputs that the segment asks for.
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

// Whether a sample has factors or offsets of its own.
inline bool IsModulated(const NormSpec& spec) {
  return spec.style != Style::kNone || spec.scale || spec.shift;
}

// Whether a position's channels are adjacent, rather than a channel's positions.
inline bool AreChannelsAdjacent(const NormSpec& spec, const Segment& segment) {
  return spec.layout == Layout::kChannelsLast || segment.spatial == 1;
}

// Calls normalize(part) with the segment, or with each sample if there are gaps between them.
template <class Normalize>
void ForSamplesTogether(const Batch& batch, const Segment& segment, const Normalize& normalize) {
  if (!GapsOf(batch.spec, segment).any()) return normalize(segment);
  const std::int64_t elements = batch.spec.channels * segment.spatial;
  const std::int64_t grain = std::max<std::int64_t>(1, kTaskElements / elements);
  batch.parallel.For(segment.samples, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) normalize(SamplesOf(batch.spec, segment, n, 1));
  });
}

// Style::kMix and kTensor: makes tables of the samples' styles, for NormalizeAnyLayout. `params`
// are the batch's.
void NormalizeStyles(const Batch& batch, const NormParams& params, const Segment& segment);

// Computes any spec without these styles: selects the code for it.
void NormalizeAnyLayout(const Batch& batch, const Segment& segment);

// The same for channels first or last.
void NormalizeFirstOrLast(const Batch& batch, const Segment& segment);

// The specialised kernels; normalize.cc says what they compute. Those of channels last take
// segments without gaps between samples.
//
// Rows, or the runs of their channels, that are contiguous: channels first, spatial == 1, and rows
// of positions whose channels are adjacent.
void NormalizeContiguous(const Batch& batch, const Segment& segment);

// Channels last, with each row's own statistics.
void NormalizeChannelsLast(const Batch& batch, const Segment& segment);

// Given statistics where channels are adjacent: channels last, and spatial == 1.
void NormalizeGivenChannelsLast(const Batch& batch, const Segment& segment);

// Layout::kMixedRuns.
void NormalizeMixedRuns(const Batch& batch, const Segment& segment);

// Every other spec, except Layout::kMixedRuns.
void NormalizeStaged(const Batch& batch, const Segment& segment);

}  // namespace normd::norm::cpu

#endif  // NORMD_KERNELS_CPU_BATCH_H_
