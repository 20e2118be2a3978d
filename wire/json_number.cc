#include "wire/json_number.h"

#include <algorithm>
#include <charconv>
#include <cmath>
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

// Digits without zeros at either end, the first of them at 10^exponent. Zero has none.
struct Decimal {
  std::string digits;
  std::int64_t exponent = 0;
};

Decimal Parse(absl::string_view number) {
  Decimal decimal;
  const char* at = number.data();
  const char* const end = at + number.size();
  if (at != end && *at == '-') ++at;
  std::int64_t before_point = 0;
  bool point = false;
  for (; at != end && (*at == '.' || (*at >= '0' && *at <= '9')); ++at) {
    if (*at == '.') {
      point = true;
      continue;
    }
    const bool leading = decimal.digits.empty() && *at == '0';
    if (!leading) decimal.digits += *at;
    before_point += point ? (leading ? -1 : 0) : (leading ? 0 : 1);
  }
  while (!decimal.digits.empty() && decimal.digits.back() == '0') decimal.digits.pop_back();
  std::int64_t exponent = 0;
  if (at != end && (*at == 'e' || *at == 'E')) {
    ++at;
    const bool negative = at != end && *at == '-';
    if (at != end && (*at == '-' || *at == '+')) ++at;
    // More digits than any text has zeros to outweigh.
    constexpr std::int64_t kMost = std::int64_t{1} << 48;
    for (; at != end && *at >= '0' && *at <= '9'; ++at) {
      exponent = std::min(exponent * 10 + (*at - '0'), kMost);
    }
    if (negative) exponent = -exponent;
  }
  decimal.exponent = decimal.digits.empty() ? 0 : before_point - 1 + exponent;
  return decimal;
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
  double first_whole = std::ceil(low);
  double last_whole = std::floor(high);
  if constexpr (kDigits == 9) {
    constexpr double kError = 4e-6;  // Three roundings of a number near 1e9 err by a tenth of it.
    if (first_whole - low < kError || low - (first_whole - 1) < kError ||
        high - last_whole < kError || last_whole + 1 - high < kError) {
      return std::nullopt;
    }
  } else if ((mantissa & 1) != 0) {  // Halfway rounds to even, so away from this one.
    first_whole += first_whole == low ? 1 : 0;
    last_whole -= last_whole == high ? 1 : 0;
  }
  auto first = static_cast<std::uint32_t>(first_whole);
  auto last = static_cast<std::uint32_t>(last_whole);
  int dropped = 0;
  for (std::uint32_t next = (first + 9) / 10; next <= last / 10; next = (first + 9) / 10) {
    first = next;
    last /= 10;
    ++dropped;
  }
  const double wanted = TimesPowerOfTen(value, power - dropped);
  const auto nearest = static_cast<std::uint32_t>(wanted + 0.5);
  return Shortest{std::clamp(nearest, first, last), dropped - power};
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

int CompareMagnitude(absl::string_view number, double value) {
  const Decimal text = Parse(number);
  // Exact: a multiple of 2^-150 of 25 bits has at most 25 + 150 digits.
  char exact[256];
  const char* const end =
      std::to_chars(exact, std::end(exact), value, std::chars_format::scientific, 176).ptr;
  const Decimal other = Parse(absl::string_view(exact, static_cast<std::size_t>(end - exact)));
  if (text.digits.empty() || other.digits.empty()) {
    return static_cast<int>(!text.digits.empty()) - static_cast<int>(!other.digits.empty());
  }
  if (text.exponent != other.exponent) return text.exponent < other.exponent ? -1 : 1;
  return text.digits.compare(other.digits);
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
