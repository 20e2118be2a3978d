// Scalar conversions of the 16-bit formats, exact.

#ifndef NORMD_KERNELS_CPU_HALF_H_
#define NORMD_KERNELS_CPU_HALF_H_

#include <bit>
#include <cstdint>

namespace normd::norm::cpu {

inline float FromFloat16(std::uint16_t bits) {
  const std::uint32_t magnitude = bits & 0x7FFFu;
  const std::uint32_t sign = (bits & 0x8000u) << 16;
  // The product moves the exponent from float16's bias to float32's, exactly, subnormals included.
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  const std::uint32_t special = magnitude > 0x7BFFu ? 0x7F800000u : 0u;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(scaled) | special | sign);
}

inline float FromBFloat16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

}  // namespace normd::norm::cpu

#endif  // NORMD_KERNELS_CPU_HALF_H_
