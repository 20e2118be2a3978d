// The shared parts of the two stage-by-stage computations. A buffer of the accumulation type holds
// a part of a row or a tile of rows while it goes from stage to stage; parts that do not fit are
// read again for each pass.

#ifndef NORMD_KERNELS_CPU_STAGED_H_
#define NORMD_KERNELS_CPU_STAGED_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "kernels/cpu/batch.h"
#include "kernels/cpu/elements.h"
#include "kernels/cpu/source.h"
#include "kernels/cpu/stage_loops.h"

namespace normd::norm::cpu {

// Elements between stages: in memory if they lie there unchanged, else in the buffer.
template <class Acc>
struct Elements {
  void Skip(std::int64_t buffer_elements, std::int64_t memory_bytes) {
    buffer += buffer_elements;
    if (memory != nullptr) memory = static_cast<const char*>(memory) + memory_bytes;
  }

  const void* memory = nullptr;
  Acc* buffer = nullptr;
};

// A segment with the arguments of its stages. Constant while it is computed, and used by all its
// threads.
template <class Acc>
struct Stages {
  Stages(const Batch& its_batch, const Segment& its_segment)
      : batch(its_batch),
        spec(its_batch.spec),
        segment(its_segment),
        loops(StageLoopsFor(spec.dtype)),
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

  // Where elements lie in memory after the stages up to the statistics. Null if a buffer is needed:
  // for values made of more than x, and for sums that exist in buffers alone.
  const void* InMemory(const Place& place, bool first_pass) const {
    if (spec.statistics == Statistics::kSumOfAbsolutes ||
        spec.statistics == Statistics::kLargestAbsolute) {
      return nullptr;
    }
    if (spec.residual_out && !first_pass) {
      return ByteAt(segment.residual_out, place.together * element_bytes);
    }
    if (HasSum(batch) || spec.combine_input != Combine::kNone) return nullptr;
    return ByteAt(segment.x, place.x * element_bytes);
  }

  // Reads `count` elements into the buffer, of one sample if there are gaps. The first pass over
  // them writes the sum. Later passes read the sum instead of its inputs, which it may have
  // overwritten.
  void Read(const Place& place, std::int64_t count, bool first_pass, Acc* v) const {
    if (spec.residual_out && !first_pass) {
      InputRun run;
      run.x = ByteAt(segment.residual_out, place.together * element_bytes);
      run.count = count;
      return loops.read(run, v);
    }
    ForInputRuns(batch, segment, place, count, [&](InputRun& run, std::int64_t offset) {
      if (spec.residual_out) {
        run.sum =
            static_cast<char*>(segment.residual_out) + (place.together + offset) * element_bytes;
      }
      loops.read(run, v + offset);
    });
  }

  // Normalizes and applies the later stages: to y, or to the buffer if the result is quantized.
  // Takes any of the three kinds of affine.
  template <class AnyAffine>
  void Apply(const Elements<Acc>& v, const Place& place, std::int64_t count,
             const AnyAffine& affine) const {
    StageRun run;
    run.count = count;
    run.epilogue = {spec.activation, spec.leaky_slope};
    run.from_buffer = v.memory == nullptr;
    run.x = run.from_buffer ? v.buffer : v.memory;
    run.to_buffer = quantizes();
    run.y = v.buffer;
    if (!run.to_buffer) run.y = static_cast<char*>(segment.y) + place.y * element_bytes;
    run.stream = stream && !run.to_buffer;
    run.combine = spec.combine_output;
    if (run.combine != Combine::kNone) {
      run.other = ByteAt(segment.other, place.together * element_bytes);
    }
    if constexpr (std::is_same_v<AnyAffine, Affine>) {
      loops.apply(run, affine);
    } else if constexpr (std::is_same_v<AnyAffine, ElementAffine>) {
      loops.apply_elements(run, affine);
    } else {
      loops.apply_line(run, affine);
    }
  }

  void Quantize(const Acc* v, const Place& place, std::int64_t count,
                const QuantizationFactors& factors) const {
    loops.quantize(v, factors, static_cast<char*>(segment.y) + place.y, count);
  }

  QuantizationFactors StaticFactors() const {
    return Factors(static_cast<float>(spec.output_scale));
  }
  QuantizationFactors Factors(float scale) const {
    return {spec.quantization, nullptr, nullptr, FactorOf(scale)};
  }

  const Batch& batch;
  const NormSpec& spec;
  const Segment& segment;
  const StageLoops& loops;
  const SimdKernels& acc_kernels;  // For buffers.
  const std::int64_t element_bytes;
  const bool stream;
};

// The sums of a part of a row; each kind of statistics uses one.
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

// Rows that lie together in memory.
template <class Acc>
void NormalizeStagedRows(const Stages<Acc>& stages);
// Rows that interleave in memory, and given statistics where channels are adjacent.
template <class Acc>
void NormalizeStagedTiles(const Stages<Acc>& stages);

}  // namespace normd::norm::cpu

#endif  // NORMD_KERNELS_CPU_STAGED_H_
