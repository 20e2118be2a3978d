// What the two ways of computing stage by stage share. A buffer of the accumulation type holds a
// part of a row or a tile of rows while it goes from stage to stage; parts that do not fit are read
// again for each pass.

#ifndef NORMD_KERNELS_CPU_STAGED_H_
#define NORMD_KERNELS_CPU_STAGED_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>

#include "kernels/cpu/batch.h"
#include "kernels/cpu/stage_inputs.h"
#include "kernels/cpu/stage_loops.h"

namespace normd::norm::cpu {

// Elements on their way: in memory where they lie there as they are, else in the buffer.
template <class Acc>
struct Elements {
  void Skip(std::int64_t buffer_elements, std::int64_t memory_bytes) {
    buffer += buffer_elements;
    if (memory != nullptr) memory = static_cast<const char*>(memory) + memory_bytes;
  }

  const void* memory = nullptr;
  Acc* buffer = nullptr;
};

// A segment with what its stages take. Constant while it is computed, and used by all its threads.
template <class Acc>
struct Stages {
  Stages(const Batch& its_batch, const NormParams& its_params, const Segment& its_segment)
      : batch(its_batch),
        spec(its_batch.spec),
        segment(its_segment),
        given_mean(its_params.mean, spec.channels),
        given_variance(its_params.variance, spec.channels),
        inputs(its_batch, its_params, its_segment),
        loops(StageLoopsFor(spec.dtype)),
        acc_loops(StageLoopsFor(kAccType)),
        acc_kernels(KernelsFor(kAccType)),
        element_bytes(static_cast<std::int64_t>(SizeOf(spec.dtype))),
        stream(its_batch.exceeds_caches && its_segment.y != its_segment.x &&
               its_segment.y != its_segment.residual && its_segment.y != its_segment.other) {}

  static constexpr DType kAccType = sizeof(Acc) == 8 ? DType::kFloat64 : DType::kFloat32;

  bool given() const { return spec.statistics == Statistics::kGiven; }
  bool quantizes() const { return spec.quantization != Quantization::kNone; }
  bool quantizes_rows() const {
    return quantizes() && spec.quantization_scale == QuantizationScale::kRow;
  }
  bool quantizes_blocks() const {
    return quantizes() && spec.quantization_scale == QuantizationScale::kBlock;
  }

  // Where elements, counted from the segment's first, lie in memory as the stages up to the
  // statistics leave them; null where a buffer is needed: for what is made of more than x, for
  // sums that exist for buffers alone, and for results of another type that are quantized.
  const void* InMemory(std::int64_t first, bool first_pass) const {
    if ((quantizes() && spec.dtype != kAccType) || spec.statistics == Statistics::kSumOfAbsolutes ||
        spec.statistics == Statistics::kLargestAbsolute) {
      return nullptr;
    }
    const std::int64_t offset = first * element_bytes;
    if (spec.residual_out && !first_pass) return static_cast<char*>(segment.residual_out) + offset;
    if (spec.residual || inputs.input_bias.present() || spec.combine_input != Combine::kNone) {
      return nullptr;
    }
    return static_cast<const char*>(segment.x) + offset;
  }

  // Elements are counted from the segment's first. On the first pass over them the sum is written;
  // then it is read in place of what it was made of, which may have been overwritten by it.
  InputRun Input(std::int64_t first, std::int64_t count, bool first_pass) const {
    const std::int64_t offset = first * element_bytes;
    const auto at = [&](const void* data) -> const void* {
      return data == nullptr ? nullptr : static_cast<const char*>(data) + offset;
    };
    InputRun run;
    run.count = count;
    if (spec.residual_out && !first_pass) {
      run.x = at(segment.residual_out);
      return run;
    }
    run.x = at(segment.x);
    run.residual = at(segment.residual);
    run.rounded = spec.residual || inputs.input_bias.present();
    if (spec.residual_out) run.sum = static_cast<char*>(segment.residual_out) + offset;
    if (spec.combine_input != Combine::kNone) {
      run.combine = spec.combine_input;
      run.other = at(segment.other);
    }
    return run;
  }
  // Whether Input's runs want a bias or a gate.
  bool TakesChannelInputs(bool first_pass) const {
    return (inputs.input_bias.present() || inputs.gate.present()) &&
           (first_pass || !spec.residual_out);
  }

  // Normalizes, and all that follows: to y, but to the buffer what is to be quantized. For an
  // affine of each of the three kinds.
  template <class AnyAffine>
  void Apply(const Elements<Acc>& v, std::int64_t first, std::int64_t count,
             const AnyAffine& affine) const {
    StageRun run;
    run.count = count;
    run.epilogue = {spec.activation, spec.leaky_slope};
    const bool joins = spec.combine_output != Combine::kNone;
    const void* const other =
        joins ? static_cast<const char*>(segment.other) + first * element_bytes : nullptr;
    if (quantizes()) {
      run.x = v.memory == nullptr ? v.buffer : v.memory;
      run.y = v.buffer;
      Call(acc_loops, run, affine);
      if (joins) loops.join(v.buffer, other, spec.combine_output, count);
      return;
    }
    run.from_buffer = v.memory == nullptr;
    run.x = run.from_buffer ? v.buffer : v.memory;
    run.y = static_cast<char*>(segment.y) + first * element_bytes;
    run.stream = stream;
    run.combine = spec.combine_output;
    run.other = other;
    Call(loops, run, affine);
  }

  void Quantize(const Acc* v, std::int64_t first, std::int64_t count,
                const QuantizationFactors& factors) const {
    loops.quantize(v, factors, static_cast<char*>(segment.y) + first, count);
  }

  // The factors of a static scale.
  QuantizationFactors StaticFactors() const { return Factors(spec.output_scale); }
  QuantizationFactors Factors(double scale) const {
    QuantizationFactors factors;
    factors.quantization = spec.quantization;
    factors.all = 1 / Rounded(scale);
    return factors;
  }
  // The scale of elements of which `largest` is the largest magnitude.
  float ScaleOf(double largest) const {
    const auto scale = static_cast<float>(largest / LargestQuantized(spec.quantization));
    return scale < std::numeric_limits<float>::min() ? std::numeric_limits<float>::min() : scale;
  }

  // Given statistics of a channel.
  RowStatistics Given(std::int64_t channel) const {
    return {given_mean.At(channel, 0), 1 / std::sqrt(given_variance.At(channel, 1) + spec.eps)};
  }

  const Batch& batch;
  const NormSpec& spec;
  const Segment& segment;
  const Param given_mean;
  const Param given_variance;
  const StageInputs<Acc> inputs;
  const StageLoops& loops;
  const StageLoops& acc_loops;  // For buffers.
  const SimdKernels& acc_kernels;
  const std::int64_t element_bytes;
  const bool stream;

 private:
  static void Call(const StageLoops& loops, const StageRun& run, const Affine& affine) {
    loops.apply(run, affine);
  }
  static void Call(const StageLoops& loops, const StageRun& run, const ElementAffine& affine) {
    loops.apply_elements(run, affine);
  }
  static void Call(const StageLoops& loops, const StageRun& run, const LineAffine& affine) {
    loops.apply_line(run, affine);
  }
  static double Rounded(double scale) { return static_cast<double>(static_cast<float>(scale)); }
};

// The sums of a part of a row, of which each kind of statistics uses one.
struct RowSums {
  Moments moments;
  double absolutes = 0;
  double largest = 0;
};

inline RowSums Merge(const RowSums& a, const RowSums& b) {
  const double largest = std::isnan(a.largest) || b.largest <= a.largest ? a.largest : b.largest;
  return {Merge(a.moments, b.moments), a.absolutes + b.absolutes, largest};
}

inline RowStatistics Finish(const RowSums& sums, const NormSpec& spec) {
  switch (spec.statistics) {
    case Statistics::kSumOfAbsolutes: return {0, ReciprocalOfNorm(sums.absolutes, spec.eps)};
    case Statistics::kLargestAbsolute: return {0, ReciprocalOfNorm(sums.largest, spec.eps)};
    default: return Finish(sums.moments, spec);
  }
}

// Samples [first, first + count) of a segment.
Segment SamplesOf(const NormSpec& spec, const Segment& segment, std::int64_t first,
                  std::int64_t count);

// Rows that lie together in memory.
template <class Acc>
void NormalizeStagedRows(const Stages<Acc>& stages);
// Rows that interleave in memory, and given statistics where channels are adjacent.
template <class Acc>
void NormalizeStagedTiles(const Stages<Acc>& stages);

}  // namespace normd::norm::cpu

#endif  // NORMD_KERNELS_CPU_STAGED_H_
