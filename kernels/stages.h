// The stages of a normalization beside its statistics: its inputs, the source of scale and shift,
// and the form of its result. kernels/norm.h says how they combine.
//
// This header is C++17 and needs no library: host code and .cu files share it. Values are part of
// the C ABI.

#ifndef NORMD_KERNELS_STAGES_H_
#define NORMD_KERNELS_STAGES_H_

#include <cstdint>

namespace normd::norm {

// Which elements share statistics.
enum class Rows : std::uint8_t {
  kGroup = 0,     // The elements of a group of channels, at all positions of a sample.
  kPosition = 1,  // The elements of a group of channels, at one position of a sample.
};

// How the second tensor of x's shape is combined. silu(v) = v / (1 + exp(-v)), sigmoid(v) = 1 / (1
// + exp(-v)).
enum class Combine : std::uint8_t {
  kNone = 0,
  kAdd = 1,              // v + other
  kMultiply = 2,         // v * other
  kMultiplySilu = 3,     // v * silu(other)
  kMultiplySigmoid = 4,  // v * sigmoid(other)
};

// The source of a sample's style, which replaces one gamma and beta for all samples.
enum class Style : std::uint8_t {
  kNone = 0,
  // gamma and beta are tables [styles, channels]; each sample names a row of them.
  kIndex = 1,
  // As kIndex, but each sample brings a weight for each row: gamma[c] = sum over k of weight[k] *
  // gamma[k, c], in order of k.
  kMix = 2,
  // The mean and the deviation sqrt(variance + eps) of each channel of a second tensor (AdaIN:
  // Huang and Belongie, "Arbitrary Style Transfer in Real-time", 2017).
  kTensor = 3,
};

// y as 8 bits: y times the reciprocal of a scale, rounded to nearest even, saturated. float64 is
// rounded to float32 first.
enum class Quantization : std::uint8_t {
  kNone = 0,
  kInt8 = 1,        // -128 to 127; a NaN becomes 0.
  kFloat8E4M3 = 2,  // OCP's E4M3 without infinities: up to 448; a NaN stays one.
};

// Which elements share a scale.
enum class QuantizationScale : std::uint8_t {
  kStatic = 0,  // NormSpec::output_scale, for all elements.
  // One scale per row: its largest |y| over LargestQuantized, at least 2^-126.
  kRow = 1,
  // One scale per block of kQuantizationBlock consecutive elements of a row, computed likewise; the
  // last block is shorter.
  kBlock = 2,
};
inline constexpr std::int64_t kQuantizationBlock = 128;

// The largest quantized value, to which the largest |y| of a row or block is mapped.
constexpr double LargestQuantized(Quantization quantization) {
  return quantization == Quantization::kInt8 ? 127 : 448;
}

}  // namespace normd::norm

#endif  // NORMD_KERNELS_STAGES_H_
