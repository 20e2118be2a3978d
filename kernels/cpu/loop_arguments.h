// The arguments of the CPU backend's vector loops. "Acc" is the accumulation type: double for
// float64, float for the others.

#ifndef NORMD_KERNELS_CPU_LOOP_ARGUMENTS_H_
#define NORMD_KERNELS_CPU_LOOP_ARGUMENTS_H_

#include <cmath>
#include <cstdint>

#include "kernels/stages.h"
#include "kernels/types.h"

namespace normd::norm::cpu {

// Moments are summed over chunks of this many elements and merged in order.
constexpr std::int64_t kChunkElements = 16384;
// Long rows are summed in parts of this many elements.
constexpr std::int64_t kPartElements = 4 * kChunkElements;

struct Epilogue {
  Activation activation = Activation::kNone;
  double leaky_slope = 0;
};

constexpr std::int64_t kMaxShortRows = 8;
// Rows of `count` > 0 elements, at most kChunkElements, `step` bytes from one to the next.
struct ShortRows {
  const void* x = nullptr;
  std::int64_t rows = 0;  // <= kMaxShortRows
  std::int64_t step = 0;
  std::int64_t count = 0;
  bool centered = true;
  bool of_sums = false;  // rstd is 1 / sqrt(m2 + eps), not that of m2 / count.
  double eps = 0;
};

// `count` contiguous elements to be moved from x to y.
struct Run {
  const void* x = nullptr;
  void* y = nullptr;
  std::int64_t count = 0;
  Epilogue epilogue;
  Combine combine = Combine::kNone;
  const void* other = nullptr;  // With `combine`, applied afterwards; of the type, at any byte.
  // Stores bypass the caches. Only for x != y; the caller ends with FlushStreams().
  bool stream = false;
};

// Bytes from a run to the same run of the next row.
struct RunSteps {
  std::int64_t x = 0;
  std::int64_t y = 0;
  std::int64_t other = 0;
};

// The values to normalize, `count` adjacent elements: ((x + bias) * gate + residual), rounded to
// the type if `rounded`, or combine(x, other). Inputs begin at any byte.
struct InputRun {
  const void* x = nullptr;
  std::int64_t count = 0;
  const void* residual = nullptr;
  const void* other = nullptr;  // With `combine`.
  Combine combine = Combine::kNone;
  // One element for each of x's if `per_element`, else one for all; null: none.
  const void* bias = nullptr;  // Acc
  const void* gate = nullptr;  // x's type.
  bool per_element = false;
  bool rounded = false;
  // If not null, the values are written here in x's type; may be x or residual.
  void* sum = nullptr;
};

// The factor of x and its center before they are subtracted: 1/2 if the difference of two finite
// floats may exceed the largest one, which takes a center of at least 2^103. The scale makes up for
// it, and powers of two change no bit.
template <class Acc>
constexpr double CenterFactor(double center) {
  return sizeof(Acc) == 4 && (center >= 0x1p102 || center <= -0x1p102) ? 0.5 : 1;
}

// The rounding error of `center` in Acc, as a shift: the difference from the mean keeps double's
// accuracy at the price of float's. Infinities have no error.
template <class Acc>
double LostShift(double center, double scale) {
  const double lost = (static_cast<double>(static_cast<Acc>(center)) - center) * scale;
  return std::isfinite(lost) ? lost : 0;
}

// y = activation((x * input_factor - center) * scale + shift)
struct Affine {
  double center = 0;
  double scale = 1;
  double shift = 0;
  double input_factor = 1;  // A power of two; the center is 0 where it is not 1.
};

// y = activation((x * input_factor - center) * scale * factor[i] + offset[i]), where
//   factor[i] = gamma[i] * (scale_offset + sample_scale[i])
//   offset[i] = beta[i] * (scale_offset + sample_scale[i]) + sample_shift[i]
// A sample's arrays have x's type and begin at any byte.
struct ElementAffine {
  double center = 0;
  double scale = 1;
  const void* gamma = nullptr;         // Acc[count]; null: 1
  const void* beta = nullptr;          // Acc[count]; null: 0
  const void* sample_scale = nullptr;  // Null: neither gamma nor beta is multiplied.
  const void* sample_shift = nullptr;  // Null: 0
  double scale_offset = 1;
  double input_factor = 1;  // As in Affine.
};

// y = activation((x * factor - center[k]) * scale[k] + shift[k]), k = (phase + i) % period. Each
// array is Acc[period + kCyclicPadding]; its last kCyclicPadding elements repeat the first.
constexpr std::int64_t kCyclicPadding = 64;
struct CyclicAffine {
  double factor = 1;
  const void* center = nullptr;
  const void* scale = nullptr;
  const void* shift = nullptr;
  std::int64_t period = 0;  // >= kCyclicPadding
  std::int64_t phase = 0;   // In [0, period)
};

// Consecutive channels of a run: the first has `first_count` elements in it, the others `spatial`.
struct ChannelRuns {
  const Affine* affines = nullptr;  // One per channel.
  std::int64_t first_count = 0;
  std::int64_t spatial = 0;
};

// At most kChunkElements of the next row.
struct NextChunk {
  const void* x = nullptr;
  std::int64_t count = 0;
  bool centered = true;
};

// `positions` x `channels` elements.
struct ChannelBlock {
  const void* x = nullptr;
  std::int64_t positions = 0;  // > 0
  std::int64_t channels = 0;   // > 0
  std::int64_t stride = 0;     // Elements from a position to the next, >= channels; 0: channels.
};

}  // namespace normd::norm::cpu

#endif  // NORMD_KERNELS_CPU_LOOP_ARGUMENTS_H_
