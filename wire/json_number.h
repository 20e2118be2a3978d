// Numbers in text: rounds them to the elements' types, and writes elements so that they read back.

#ifndef NORMD_WIRE_JSON_NUMBER_H_
#define NORMD_WIRE_JSON_NUMBER_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace normd {

// A format of IEEE 754's kind, of at most 32 bits.
struct FloatFormat {
  int mantissa_bits;
  int exponent_bits;

  constexpr int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  // The exponent of the last bit of a subnormal number.
  constexpr int least_exponent() const { return 1 - bias() - mantissa_bits; }
  constexpr std::uint32_t infinity() const {
    return ((std::uint32_t{1} << exponent_bits) - 1) << mantissa_bits;
  }
  constexpr std::uint32_t sign() const {
    return std::uint32_t{1} << (mantissa_bits + exponent_bits);
  }
};
inline constexpr FloatFormat kFloat32Format{23, 8};
inline constexpr FloatFormat kFloat16Format{10, 5};
inline constexpr FloatFormat kBFloat16Format{7, 8};

// A JSON number: `digits` times 10^exponent.
struct JsonNumber {
  absl::string_view text;  // Empty: there is none.
  std::uint64_t digits = 0;
  std::int64_t exponent = 0;
  bool exact = false;  // All digits are in `digits`.
  bool negative = false;
  bool is_integer = false;  // Neither a point nor an exponent.
};

// Reads the number that begins at `at`, where bytes that belong to no number end the text. What
// follows the number is the caller's to check.
inline JsonNumber ScanJsonNumber(const char* at) {
  const char* const begin = at;
  JsonNumber number;
  number.negative = *at == '-';
  at += number.negative ? 1 : 0;
  const auto read_digits = [&at](const auto& into) {
    const char* const first = at;
    for (; *at >= '0' && *at <= '9'; ++at) into(*at - '0');
    return at - first;
  };
  const auto add = [&number](int digit) {
    number.digits = number.digits * 10 + static_cast<std::uint64_t>(digit);
  };
  const bool zero = *at == '0';
  std::ptrdiff_t count = read_digits(add);
  if (count == 0 || (zero && count > 1)) return {};
  number.is_integer = true;
  if (*at == '.') {
    ++at;
    const std::ptrdiff_t places = read_digits(add);
    if (places == 0) return {};
    number.exponent = -places;
    number.is_integer = false;
    count += places;
  }
  number.exact = count <= 19;
  if (*at == 'e' || *at == 'E') {
    ++at;
    const bool negative = *at == '-';
    at += *at == '-' || *at == '+' ? 1 : 0;
    std::int64_t exponent = 0;
    const auto step = [&exponent](int digit) {
      if (exponent < std::int64_t{1} << 48) exponent = exponent * 10 + digit;
    };
    if (read_digits(step) == 0) return {};
    number.exponent += negative ? -exponent : exponent;
    number.is_integer = false;
  }
  number.text = absl::string_view(begin, static_cast<std::size_t>(at - begin));
  return number;
}

// The double nearest to the number; infinite beyond the largest.
double NearestDouble(const JsonNumber& number);

// Whether the number, to which `nearest` is the nearest double, is greater (1), less (-1) or
// exactly that (0).
int Compare(absl::string_view number, double nearest);

// The bits of the JSON number `text` in the format, to nearest, ties to even; `nearest` is the
// double nearest to it. Null beyond the largest finite number.
//
// Rounding `nearest` again is right unless it lies halfway between two numbers of the format: then
// the text decides on which side it is, and that is the only case in which the text is looked at.
template <FloatFormat kFormat>
std::optional<std::uint32_t> RoundTo(double nearest, absl::string_view text) {
  constexpr int kDoubleBits = 52;
  constexpr int kDoubleBias = 1023;
  const auto bits = std::bit_cast<std::uint64_t>(nearest);
  const std::uint32_t sign = (bits >> 63) != 0 ? kFormat.sign() : 0;
  const int exponent = static_cast<int>(bits >> kDoubleBits & 0x7ff) - kDoubleBias;
  constexpr std::uint64_t kOne = std::uint64_t{1} << kDoubleBits;
  std::uint64_t magnitude = (bits & (kOne - 1)) | kOne;
  int shift = kDoubleBits - kFormat.mantissa_bits;
  // The exponent goes before the mantissa, so that a carry out of that steps it; subnormal numbers
  // have none, and lose more bits instead.
  if (exponent >= 1 - kFormat.bias()) {
    magnitude += static_cast<std::uint64_t>(exponent + kFormat.bias() - 1) << kDoubleBits;
  } else {
    shift += 1 - kFormat.bias() - exponent;
    if (shift > kDoubleBits + 1) return sign;  // Less than half of the least.
  }
  std::uint64_t rounded = magnitude >> shift;
  const std::uint64_t rest = magnitude & ((std::uint64_t{1} << shift) - 1);
  const std::uint64_t half = std::uint64_t{1} << (shift - 1);
  if (rest == half) [[unlikely]] {
    const int side = Compare(text, nearest) * (sign != 0 ? -1 : 1);
    rounded += side > 0 || (side == 0 && (rounded & 1) != 0) ? 1 : 0;
  } else {
    rounded += rest > half ? 1 : 0;
  }
  if (rounded >= kFormat.infinity()) return std::nullopt;
  return sign | static_cast<std::uint32_t>(rounded);
}

// The most bytes that the functions below may write, some of them behind the number.
inline constexpr std::size_t kMaxNumberBytes = 32;

// Writes a number with the fewest digits that RoundTo reads back as `bits`; returns its end.
// Requires a finite number.
template <FloatFormat kFormat>
char* WriteNumber(std::uint32_t bits, char* out);
extern template char* WriteNumber<kFloat32Format>(std::uint32_t bits, char* out);
extern template char* WriteNumber<kFloat16Format>(std::uint32_t bits, char* out);
extern template char* WriteNumber<kBFloat16Format>(std::uint32_t bits, char* out);

char* WriteNumber(double value, char* out);  // Requires a finite number.
char* WriteNumber(std::int64_t value, char* out);

}  // namespace normd

#endif  // NORMD_WIRE_JSON_NUMBER_H_
