#include "wire/json_number.h"

#include <algorithm>
#include <cfenv>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
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

// A number to write: `digits`, of which there are `size`, times 10^exponent.
struct Shortest {
  std::uint32_t digits;
  int size;
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
  power -= static_cast<int>(TimesPowerOfTen(value, power) >= kPowersOfTen[kDigits]);
  const double low = TimesPowerOfTen(value - unit * (is_power ? 0.25 : 0.5), power);
  const double high = TimesPowerOfTen(value + unit * 0.5, power);
  auto first = static_cast<std::uint32_t>(low);  // Not std::ceil, which is a call.
  first += first < low ? 1 : 0;
  auto last = static_cast<std::uint32_t>(high);
  if constexpr (kDigits == 9) {
    constexpr double kError = 4e-6;  // Three roundings of a number near 1e9 err by a tenth of it.
    const double below = first - low;
    const double above = high - last;
    if (below < kError || below > 1 - kError || above < kError || above > 1 - kError) {
      return std::nullopt;
    }
  } else if ((mantissa & 1) != 0) {  // Halfway rounds to even, so away from this one.
    first += first == low ? 1 : 0;
    last -= last == high ? 1 : 0;
  }
  auto nearest = static_cast<std::uint32_t>(TimesPowerOfTen(value, power) + 0.5);
  int dropped = 0;
  std::uint32_t round = 0;
  for (std::uint32_t next = (first + 9) / 10; next <= last / 10; next = (first + 9) / 10) {
    first = next;
    last /= 10;
    round = nearest % 10 >= 5 ? 1 : 0;
    nearest /= 10;
    ++dropped;
  }
  const std::uint32_t digits = std::clamp(nearest + round, first, last);
  const int size = kDigits - dropped;
  if (digits == kPowersOfTen[size]) return Shortest{1, 1, size + dropped - power};
  return Shortest{digits, size, dropped - power};
}

// The digits of a number below 10^8, the first in the lowest byte: pairs of digits, then digits are
// parted in all lanes at once.
std::uint64_t EightDigits(std::uint32_t number) {
  std::uint64_t lanes = number / 10000 | std::uint64_t{number % 10000} << 32;
  const std::uint64_t hundreds = (lanes * 10486 >> 20) & 0x0000007f0000007f;
  lanes = hundreds | (lanes - hundreds * 100) << 16;
  const std::uint64_t tens = (lanes * 103 >> 10) & 0x000f000f000f000f;
  return (tens | (lanes - tens * 10) << 8) + 0x3030303030303030;
}

char* Write(const Shortest& number, char* out) {
  static_assert(std::endian::native == std::endian::little);
  constexpr std::uint32_t kRest = 100'000'000;  // Nine digits at most, zeros behind them.
  const std::uint32_t nine =
      number.digits * static_cast<std::uint32_t>(kPowersOfTen[9 - number.size]);
  const auto first = static_cast<char>('0' + nine / kRest);
  const std::uint64_t rest = EightDigits(nine % kRest);
  const auto copy = [](std::uint64_t digits, char* to) { std::memcpy(to, &digits, 8); };
  const int point = number.size + number.exponent;  // Digits before it.
  if (point <= 0 && point > -4) {
    std::memcpy(out, "0.000", 6);
    out += 2 - point;
    *out = first;
    copy(rest, out + 1);
    return out + number.size;
  }
  *out = first;
  if (point > 0 && point <= 9) {
    copy(rest, out + 1);
    if (point >= number.size) return out + point;
    out[point] = '.';
    copy(rest >> (8 * (point - 1)), out + point + 1);
    return out + number.size + 1;
  }
  out[1] = '.';
  copy(rest, out + 2);
  out += number.size > 1 ? number.size + 1 : 1;
  *out = 'e';
  return std::to_chars(out + 1, out + 5, point - 1).ptr;
}

// JSON's readers take -0 for an integer, which has no sign.
char* WriteZero(bool negative, char* out) {
  const absl::string_view zero = negative ? "-0.0" : "0";
  std::memcpy(out, zero.data(), zero.size());
  return out + zero.size();
}

}  // namespace

double NearestDouble(const JsonNumber& number) {
  // Both are exact, so that the one operation rounds once.
  constexpr std::uint64_t kMostExact = std::uint64_t{1} << 53;
  if (number.exact && number.digits <= kMostExact && number.exponent >= -22 &&
      number.exponent <= 22) {
    const double magnitude =
        TimesPowerOfTen(static_cast<double>(number.digits), static_cast<int>(number.exponent));
    return number.negative ? -magnitude : magnitude;
  }
  double nearest = 0;
  const auto [end, error] =
      std::from_chars(number.text.data(), number.text.data() + number.text.size(), nearest);
  // It does not say which of the two limits was passed.
  return error == std::errc() ? nearest : std::strtod(std::string(number.text).c_str(), nullptr);
}

int Compare(absl::string_view number, double nearest) {
  const std::string text(number);
  const int usual = std::fegetround();  // strtod rounds exactly, and as it is told to.
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
  *out = '-';  // Signs are hard to predict.
  out += static_cast<int>(negative);
  const std::optional<Shortest> shortest = ShortestOf<kFormat>(bits);
  if (shortest.has_value()) return Write(*shortest, out);
  return std::to_chars(out, out + kMaxNumberBytes, std::bit_cast<float>(bits),
                       std::chars_format::scientific)
      .ptr;
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
