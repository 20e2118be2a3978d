// Elements of every type as float64, exactly: the formats' definitions, written out.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/reference.h"

namespace normd::norm {
namespace {

template <typename T>
T Read(const void* data, std::int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + index * static_cast<std::int64_t>(sizeof(T)),
              sizeof(T));
  return value;
}

template <typename T>
void Write(void* data, std::int64_t index, T value) {
  std::memcpy(static_cast<char*>(data) + index * static_cast<std::int64_t>(sizeof(T)), &value,
              sizeof(T));
}

// 2^exponent, between the smallest and the largest normal double. std::ldexp would take most of the
// reference's time with 16-bit elements.
double PowerOfTwo(int exponent) {
  const std::uint64_t bits = static_cast<std::uint64_t>(exponent + 1023) << 52;
  double power = 0;
  std::memcpy(&power, &bits, sizeof(power));
  return power;
}

// floor(log2 |value|) of a finite number other than 0, and -1023 for subnormal ones.
int ExponentOf(double value) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return static_cast<int>(bits >> 52 & 0x7ff) - 1023;
}

// A binary format of 16 bits: `mantissa_bits` explicit ones, exponents from `min_exponent` (of the
// smallest normal number) to `max_exponent`.
struct HalfFormat {
  int mantissa_bits;
  int min_exponent;
  int max_exponent;
};
constexpr HalfFormat kFloat16Format{10, -14, 15};
constexpr HalfFormat kBFloat16Format{7, -126, 127};

template <HalfFormat format>
double Decode(std::uint16_t bits) {
  const int mantissa = bits & ((1 << format.mantissa_bits) - 1);
  const bool negative = (bits & 0x8000) != 0;
  double magnitude = 0;
  if ((bits & 0x7fff) >> format.mantissa_bits == 2 * format.max_exponent + 1) {
    magnitude = mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                              : std::numeric_limits<double>::infinity();
  } else {
    // The fields of a double, whose exponent has another bias; subnormal numbers stay subnormal.
    const std::uint64_t fields = std::uint64_t{bits & 0x7fffu} << (52 - format.mantissa_bits);
    std::memcpy(&magnitude, &fields, sizeof(magnitude));
    magnitude *= PowerOfTwo(1023 - format.max_exponent);
  }
  return negative ? -magnitude : magnitude;
}

template <HalfFormat format>
std::uint16_t Encode(double value) {
  const int sign = std::signbit(value) ? 0x8000 : 0;
  const int infinity = ((1 << (15 - format.mantissa_bits)) - 1) << format.mantissa_bits;
  if (std::isnan(value)) {
    return static_cast<std::uint16_t>(sign | infinity | (1 << (format.mantissa_bits - 1)));
  }
  if (std::isinf(value)) return static_cast<std::uint16_t>(sign | infinity);
  if (value == 0) return static_cast<std::uint16_t>(sign);
  // The spacing of the format's numbers around |value|; nearbyint rounds to nearest even.
  const int exponent = std::max(ExponentOf(value), format.min_exponent);
  if (exponent > format.max_exponent) return static_cast<std::uint16_t>(sign | infinity);
  const double scaled = std::fabs(value) * PowerOfTwo(format.mantissa_bits - exponent);
  const double rounded = std::nearbyint(scaled);
  // A carry out of the mantissa moves into the exponent field by itself, up to infinity.
  const std::int64_t bits =
      (static_cast<std::int64_t>(exponent - format.min_exponent) << format.mantissa_bits) +
      static_cast<std::int64_t>(rounded);
  return static_cast<std::uint16_t>(sign | static_cast<int>(bits));
}

}  // namespace

double LoadElement(DType dtype, const void* data, std::int64_t index) {
  switch (dtype) {
    case DType::kFloat32: return static_cast<double>(Read<float>(data, index));
    case DType::kFloat64: return Read<double>(data, index);
    case DType::kFloat16: return Decode<kFloat16Format>(Read<std::uint16_t>(data, index));
    case DType::kBFloat16: return Decode<kBFloat16Format>(Read<std::uint16_t>(data, index));
    case DType::kInt8: return LoadQuantized(Quantization::kInt8, data, index);
    case DType::kFloat8E4M3: return LoadQuantized(Quantization::kFloat8E4M3, data, index);
    case DType::kInt64: return static_cast<double>(Read<std::int64_t>(data, index));
  }
  return std::numeric_limits<double>::quiet_NaN();
}

void StoreElement(DType dtype, void* data, std::int64_t index, double value) {
  switch (dtype) {
    case DType::kFloat32: Write(data, index, static_cast<float>(value)); return;
    case DType::kFloat64: Write(data, index, value); return;
    case DType::kFloat16: Write(data, index, Encode<kFloat16Format>(value)); return;
    case DType::kBFloat16: Write(data, index, Encode<kBFloat16Format>(value)); return;
    case DType::kInt8: return StoreQuantized(Quantization::kInt8, data, index, value);
    case DType::kFloat8E4M3: return StoreQuantized(Quantization::kFloat8E4M3, data, index, value);
    case DType::kInt64: Write(data, index, static_cast<std::int64_t>(value)); return;
  }
}

double LoadQuantized(Quantization quantization, const void* data, std::int64_t index) {
  if (quantization == Quantization::kInt8) return Read<std::int8_t>(data, index);
  const auto bits = Read<std::uint8_t>(data, index);
  const int magnitude = bits & 0x7f;
  const double sign = (bits & 0x80) != 0 ? -1.0 : 1.0;
  if (magnitude == 0x7f) return std::numeric_limits<double>::quiet_NaN();
  const int exponent = magnitude >> 3;
  const int mantissa = magnitude & 7;
  if (exponent == 0) return sign * std::ldexp(mantissa, -9);
  return sign * std::ldexp(8 + mantissa, exponent - 10);
}

void StoreQuantized(Quantization quantization, void* data, std::int64_t index, double value) {
  if (quantization == Quantization::kInt8) {
    const double rounded = std::isnan(value) ? 0 : std::nearbyint(std::clamp(value, -200.0, 200.0));
    Write(data, index, static_cast<std::int8_t>(std::clamp(rounded, -128.0, 127.0)));
    return;
  }
  const int sign = std::signbit(value) ? 0x80 : 0;
  if (std::isnan(value)) return Write(data, index, static_cast<std::uint8_t>(sign | 0x7f));
  const double magnitude = std::min(std::fabs(value), 448.0);
  // The format's step is 2^(exponent - 3), for subnormals 2^-9.
  const int exponent = magnitude == 0 ? -6 : std::max(std::ilogb(magnitude), -6);
  const int steps = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 3 - exponent)));
  Write(data, index, static_cast<std::uint8_t>(sign | (((exponent + 6) << 3) + steps)));
}

}  // namespace normd::norm
