#include "wire/json_number.h"

#include <algorithm>
#include <cfenv>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>

namespace normd {
namespace {

constexpr double kPowersOfTen[] = {
    1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11, 1e12, 1e13,
    1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22, 1e23, 1e24, 1e25, 1e26, 1e27,
    1e28, 1e29, 1e30, 1e31, 1e32, 1e33, 1e34, 1e35, 1e36, 1e37, 1e38, 1e39, 1e40, 1e41,
    1e42, 1e43, 1e44, 1e45, 1e46, 1e47, 1e48, 1e49, 1e50, 1e51, 1e52, 1e53, 1e54};

double TimesPowerOfTen(double value, int power) {
  return power >= 0 ? value * kPowersOfTen[power] : value / kPowersOfTen[-power];
}

double PowerOfTwo(int exponent) {
  return std::bit_cast<double>(static_cast<std::uint64_t>(exponent + 1023) << 52);
}

// A number to write: `digits` times 10^exponent.
struct Shortest {
  std::uint32_t digits;
  int exponent;
};

// The digits that tell any two numbers of the format apart.
constexpr int DigitsOf(FloatFormat format) {
  return format.mantissa_bits == 23 ? 9 : format.mantissa_bits == 10 ? 5 : 4;
}

// The shortest decimal that rounds to `bits`, a number > 0: the interval of what rounds to it is
// scaled until its integers have all the digits that can be needed, and digits are dropped while
// the interval still has a number with fewer. Null if a bound lies so close to an integer that
// errors of the scaling could matter. The small formats have no such case but bounds that are
// integers, which are scaled without an error.
template <FloatFormat kFormat>
std::optional<Shortest> ShortestOf(std::uint32_t bits) {
  constexpr int kDigits = DigitsOf(kFormat);
  const auto field = static_cast<int>(bits >> kFormat.mantissa_bits);
  std::uint32_t mantissa = bits & ((std::uint32_t{1} << kFormat.mantissa_bits) - 1);
  const bool is_power = mantissa == 0 && field > 1;  // What is below is twice as close.
  if (field != 0) mantissa |= std::uint32_t{1} << kFormat.mantissa_bits;
  const int exponent = kFormat.least_exponent() + std::max(field, 1) - 1;
  const double unit = PowerOfTwo(exponent);
  const double value = mantissa * unit;
  const int floor_log2 = exponent + static_cast<int>(std::bit_width(mantissa)) - 1;
  // floor(log10(2^floor_log2)), and so that of the value or one less.
  int power = kDigits - 1 - ((floor_log2 * 78913) >> 18);
  if (TimesPowerOfTen(value, power) >= kPowersOfTen[kDigits]) --power;
  const double low = TimesPowerOfTen(value - unit * (is_power ? 0.25 : 0.5), power);
  const double high = TimesPowerOfTen(value + unit * 0.5, power);
  auto first = static_cast<std::int64_t>(low);  // Not std::ceil, which is a call.
  first += static_cast<double>(first) < low ? 1 : 0;
  auto last = static_cast<std::int64_t>(high);
  if constexpr (kDigits == 9) {
    constexpr double kError = 4e-6;  // Three roundings of a number near 1e9 err by a tenth of it.
    const auto close = [](double a, std::int64_t b) {
      return std::abs(a - static_cast<double>(b)) < kError;
    };
    if (close(low, first) || close(low, first - 1) || close(high, last) || close(high, last + 1)) {
      return std::nullopt;
    }
  } else if ((mantissa & 1) != 0) {  // Halfway rounds to even, so away from this one.
    first += static_cast<double>(first) == low ? 1 : 0;
    last -= static_cast<double>(last) == high ? 1 : 0;
  }
  int dropped = 0;
  for (std::int64_t next = (first + 9) / 10; next <= last / 10; next = (first + 9) / 10) {
    first = next;
    last /= 10;
    ++dropped;
  }
  const double wanted = TimesPowerOfTen(value, power - dropped);
  const auto nearest = static_cast<std::int64_t>(wanted + 0.5);
  return Shortest{static_cast<std::uint32_t>(std::clamp(nearest, first, last)), dropped - power};
}

char* Write(const Shortest& number, char* out) {
  char digits[10];
  const auto size =
      static_cast<int>(std::to_chars(digits, std::end(digits), number.digits).ptr - digits);
  const int point = size + number.exponent;  // Digits before it.
  const auto append = [&out](const char* from, int count) {
    std::memcpy(out, from, static_cast<std::size_t>(count));
    out += count;
  };
  const auto zeros = [&out](int count) { out = std::fill_n(out, count, '0'); };
  if (point > -4 && point <= 9) {
    if (point <= 0) {
      append("0.", 2);
      zeros(-point);
      append(digits, size);
    } else if (point >= size) {
      append(digits, size);
      zeros(point - size);
    } else {
      append(digits, point);
      *out++ = '.';
      append(digits + point, size - point);
    }
    return out;
  }
  append(digits, 1);
  if (size > 1) {
    *out++ = '.';
    append(digits + 1, size - 1);
  }
  *out++ = 'e';
  return std::to_chars(out, out + 4, point - 1).ptr;
}

// JSON's readers take -0 for an integer, which has no sign.
char* WriteZero(bool negative, char* out) {
  const absl::string_view zero = negative ? "-0.0" : "0";
  std::memcpy(out, zero.data(), zero.size());
  return out + zero.size();
}

}  // namespace

int Compare(absl::string_view number, double nearest) {
  // strtod rounds exactly, and as it is told to.
  const std::string text(number.substr(0, number.find_first_not_of("+-.0123456789eE")));
  const int usual = std::fegetround();
  std::fesetround(FE_UPWARD);
  const double above = std::strtod(text.c_str(), nullptr);
  std::fesetround(FE_DOWNWARD);
  const double below = std::strtod(text.c_str(), nullptr);
  std::fesetround(usual);
  return above > nearest ? 1 : below < nearest ? -1 : 0;
}

template <FloatFormat kFormat>
char* WriteNumber(std::uint32_t bits, char* out) {
  const bool negative = (bits & kFormat.sign()) != 0;
  bits &= kFormat.sign() - 1;
  if (bits == 0) return WriteZero(negative, out);
  if (negative) *out++ = '-';
  const std::optional<Shortest> shortest = ShortestOf<kFormat>(bits);
  if (shortest.has_value()) return Write(*shortest, out);
  return std::to_chars(out, out + kMaxNumberBytes, std::bit_cast<float>(bits)).ptr;
}
template char* WriteNumber<kFloat32Format>(std::uint32_t bits, char* out);
template char* WriteNumber<kFloat16Format>(std::uint32_t bits, char* out);
template char* WriteNumber<kBFloat16Format>(std::uint32_t bits, char* out);

char* WriteNumber(double value, char* out) {
  if (value == 0) return WriteZero(std::signbit(value), out);
  return std::to_chars(out, out + kMaxNumberBytes, value).ptr;
}

char* WriteNumber(std::int64_t value, char* out) {
  return std::to_chars(out, out + kMaxNumberBytes, value).ptr;
}

}  // namespace normd
