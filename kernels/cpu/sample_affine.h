// The factors and offsets of normalized values: gamma and beta, a row of styles, the sample's own
// scale and shift; and, in columns, the factors of rows that interleave.

#ifndef NORMD_KERNELS_CPU_SAMPLE_AFFINE_H_
#define NORMD_KERNELS_CPU_SAMPLE_AFFINE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/cpu/batch.h"
#include "kernels/cpu/elements.h"
#include "kernels/cpu/loop_arguments.h"

namespace normd::norm::cpu {

// The factor and the offset of a sample's channel.
struct FactorAndOffset {
  double factor = 1;
  double offset = 0;
};

// The first element of a sample's row in the tables of gamma and beta.
inline std::int64_t TableBegin(const NormSpec& spec, const Segment& segment, std::int64_t sample) {
  if (spec.style != Style::kIndex) return 0;
  // CheckStyleIndexes has checked the range, but the memory may be written meanwhile.
  const auto index = LoadUnaligned<std::int64_t>(segment.style_index, sample);
  return std::clamp<std::int64_t>(index, 0, spec.styles - 1) * spec.channels;
}

inline FactorAndOffset FactorAndOffsetOf(const Batch& batch, const Segment& segment,
                                         std::int64_t sample, std::int64_t channel) {
  const NormSpec& spec = batch.spec;
  const std::int64_t at = TableBegin(spec, segment, sample) + channel;
  const std::int64_t own = sample * spec.channels + channel;
  FactorAndOffset result{batch.params.gamma.At(at, 1), batch.params.beta.At(at, 0)};
  if (spec.scale) {
    const double by = spec.scale_offset + ElementAt(spec.dtype, segment.scale, own);
    result.factor *= by;
    // Infinity times an absent beta must not give NaN.
    if (batch.params.beta.present()) result.offset *= by;
  }
  if (spec.shift) result.offset += ElementAt(spec.dtype, segment.shift, own);
  return result;
}

// The factor of a row's elements before all others: not 1 if the row's norm is so large or so small
// that its reciprocal, or that times gamma, may not be a normal float. No element exceeds its norm,
// so the larger factor overflows none, and elements that the smaller one makes subnormal are
// negligible beside the norm.
inline double InputFactor(const NormSpec& spec, double rstd) {
  if (spec.statistics <= Statistics::kGiven) return 1;
  return rstd < 0x1p-64 ? 0x1p-64 : rstd >= 0x1p64 ? 0x1p96 : 1;
}

// The affine step of a sample's channel.
inline Affine ChannelAffine(const Batch& batch, const Segment& segment, const RowStatistics& row,
                            std::int64_t sample, std::int64_t channel) {
  const FactorAndOffset terms = FactorAndOffsetOf(batch, segment, sample, channel);
  const double factor = InputFactor(batch.spec, row.rstd);
  if (factor == 1) return {row.mean, row.rstd * terms.factor, terms.offset};
  return {0, row.rstd / factor * terms.factor, terms.offset, factor};
}

// The same for its channels from one on, each of one element. The elements are prepared.
inline ElementAffine ElementsFrom(const Batch& batch, const Segment& segment,
                                  const RowStatistics& row, std::int64_t sample,
                                  std::int64_t channel) {
  const NormSpec& spec = batch.spec;
  const auto element = static_cast<std::int64_t>(SizeOf(spec.dtype));
  const std::int64_t at = TableBegin(spec, segment, sample) + channel;
  const std::int64_t own = sample * spec.channels + channel;
  ElementAffine affine;
  affine.center = row.mean;
  affine.scale = row.rstd;
  if (const double factor = InputFactor(spec, row.rstd); factor != 1) {
    affine.input_factor = factor;
    affine.scale = row.rstd / factor;
  }
  affine.gamma = ByteAt(batch.params.element_gamma, at * batch.acc_bytes());
  affine.beta = ByteAt(batch.params.element_beta, at * batch.acc_bytes());
  affine.sample_scale = ByteAt(segment.scale, own * element);
  affine.sample_shift = ByteAt(segment.shift, own * element);
  affine.scale_offset = spec.scale_offset;
  return affine;
}

inline RowStatistics GivenStatistics(const Batch& batch, std::int64_t channel) {
  return {batch.params.mean.At(channel, 0),
          1 / std::sqrt(batch.params.variance.At(channel, 1) + batch.spec.eps)};
}

// Adjacent columns whose rows have one factor: columns with another factor take passes of their
// own.
class FactorRuns {
 public:
  struct Run {
    std::int64_t end;  // The column after the run's last.
    double factor;
  };

  void Clear() { runs_.clear(); }
  // Call with increasing columns; columns in between have the factor 1.
  void Add(std::int64_t column, double factor) {
    Finish(column);
    Extend(column + 1, factor);
  }
  // Call after the last column with a factor other than 1.
  void Finish(std::int64_t columns) {
    if ((runs_.empty() ? 0 : runs_.back().end) < columns) Extend(columns, 1);
  }
  const std::vector<Run>& runs() const { return runs_; }

 private:
  void Extend(std::int64_t end, double factor) {
    if (runs_.empty() || runs_.back().factor != factor) runs_.push_back({0, factor});
    runs_.back().end = end;
  }

  std::vector<Run> runs_;
};

}  // namespace normd::norm::cpu

#endif  // NORMD_KERNELS_CPU_SAMPLE_AFFINE_H_
