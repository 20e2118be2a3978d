// Elements of tensors in JSON, against exact rational numbers.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/multiprecision/cpp_int.hpp>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/wire/infer_json_body.h"

namespace normd {
namespace {

using ::testing::HasSubstr;
using Rational = boost::multiprecision::cpp_rational;
using Integer = boost::multiprecision::cpp_int;

// What a number says, exactly.
Rational Exact(absl::string_view number) {
  std::string digits;
  std::int64_t exponent = 0;
  bool point = false;
  std::size_t i = number[0] == '-' ? 1 : 0;
  for (; i < number.size() && number[i] != 'e' && number[i] != 'E'; ++i) {
    if (number[i] == '.') {
      point = true;
    } else {
      digits += number[i];
      exponent -= point ? 1 : 0;
    }
  }
  if (i < number.size()) exponent += std::stoll(std::string(number.substr(i + 1)));
  digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size() - 1));
  const Integer power =
      boost::multiprecision::pow(Integer(10), static_cast<unsigned>(std::abs(exponent)));
  const Rational value =
      exponent < 0 ? Rational(Integer(digits), power) : Rational(Integer(digits) * power);
  return number[0] == '-' ? Rational(-value) : value;
}

// A type of floating point, as its numbers are laid out.
struct FloatType {
  absl::string_view name;
  int bytes;
  int mantissa_bits;
  int exponent_bits;

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  std::uint64_t infinity() const {
    return ((std::uint64_t{1} << exponent_bits) - 1) << mantissa_bits;
  }
  // The value of the bits of a number that is not negative; infinity's is 2^(bias + 1).
  Rational ValueOf(std::uint64_t bits) const {
    const auto field = static_cast<int>(bits >> mantissa_bits);
    Integer mantissa = bits & ((std::uint64_t{1} << mantissa_bits) - 1);
    if (field != 0) mantissa += Integer(1) << mantissa_bits;
    const int exponent = std::max(field, 1) - bias() - mantissa_bits;
    return exponent < 0 ? Rational(mantissa, Integer(1) << -exponent)
                        : Rational(mantissa << exponent);
  }
};
constexpr FloatType kFloatTypes[] = {
    {"FP32", 4, 23, 8}, {"FP64", 8, 52, 11}, {"FP16", 2, 10, 5}, {"BF16", 2, 7, 8}};

// The decimal expansion, exact, of a number that is a multiple of a power of two.
std::string Print(Rational value) {
  const bool negative = value < 0;
  if (negative) value = -value;
  Integer numerator = boost::multiprecision::numerator(value);
  Integer denominator = boost::multiprecision::denominator(value);
  int places = 0;
  while (denominator != 1) {
    denominator /= 2;
    numerator *= 5;
    ++places;
  }
  return absl::StrCat(negative ? "-" : "", numerator.str(), "e-", places);
}

// Checks that `number` is read as the nearest of its type, ties to even; exactly.
void ExpectNearest(const FloatType& type, absl::string_view number) {
  const absl::StatusOr<std::string> bytes = OneElement(type.name, number);
  Rational value = Exact(number);
  if (value < 0) value = -value;
  const std::uint64_t infinity = type.infinity();
  const Rational too_large =
      (type.ValueOf(infinity - 1) + type.ValueOf(infinity)) / 2;  // Ties to infinity.
  if (value >= too_large) {
    EXPECT_TRUE(absl::IsInvalidArgument(bytes.status())) << type.name << " " << number;
    return;
  }
  ASSERT_TRUE(bytes.ok()) << type.name << " " << number << ": " << bytes.status();
  ASSERT_EQ(bytes->size(), static_cast<std::size_t>(type.bytes));
  std::uint64_t bits = 0;
  std::memcpy(&bits, bytes->data(), bytes->size());
  const std::uint64_t sign = std::uint64_t{1} << (type.mantissa_bits + type.exponent_bits);
  EXPECT_EQ((bits & sign) != 0, number[0] == '-') << type.name << " " << number;
  bits &= sign - 1;
  ASSERT_LT(bits, infinity);
  const bool even = (bits & 1) == 0;
  const Rational above = (type.ValueOf(bits) + type.ValueOf(bits + 1)) / 2;
  EXPECT_TRUE(value < above || (even && value == above)) << type.name << " " << number;
  if (bits == 0) return;
  const Rational below = (type.ValueOf(bits) + type.ValueOf(bits - 1)) / 2;
  EXPECT_TRUE(value > below || (even && value == below)) << type.name << " " << number;
}

constexpr char kNumbers[] =
    "0 -0 0.0 -0.0 0e5 -0e-999 1 -1 0.1 1e0 1E+2 1e-2 123456789012345678901234567890 "
    "0.30000000000000004 1e-400 -1e-400 1e-5000 1e400 65504 65519.99999999999999999999 65520 "
    "3.4028235677973366e38 3.4028235677973365e38 1.7976931348623158e308 1.7976931348623159e308 "
    "5e-324 2.4703282292062327e-324 2.4703282292062328e-324 5.9604644775390625e-8 "
    "2.98023223876953125e-8 2.98023223876953126e-8 1e-45 7.006492321624085e-46 "
    "7.0064923216240854e-46 9007199254740993 9007199254740992.9999999999999999999 "
    "0.10000000000000000000000000000000000001234567890123456789012 0.12345678901234567890123 "
    "1e00000000000000000000000000001 1e-00000000000000000000000000001 "
    "0.000000000000000000000000000000000000000000000000000000000000000000001e70";

TEST(InferJsonNumbersTest, ReadsNumbersAsTheNearestOfTheirType) {
  for (const FloatType& type : kFloatTypes) {
    for (const absl::string_view number : absl::StrSplit(kNumbers, ' ')) {
      ExpectNearest(type, number);
    }
  }
}

// Texts that a double cannot tell from the middle between two numbers of a smaller type.
// A sanitizer looks at the ways through the reader, which fewer numbers take too.
#ifdef NORMD_SANITIZED
constexpr int kRandomNumbers = 60;
constexpr std::uint64_t kStepOfHalves = 7;
#else
constexpr int kRandomNumbers = 300;
constexpr std::uint64_t kStepOfHalves = 1;
#endif

TEST(InferJsonNumbersTest, RoundsOnceNearTheMiddleOfTwoNumbers) {
  std::mt19937_64 random(40);
  for (const FloatType& type : kFloatTypes) {
    std::vector<std::uint64_t> all{0, 1, 2, 3, type.infinity() - 1, type.infinity() - 2};
    for (int i = 0; i < kRandomNumbers; ++i) all.push_back(random() % type.infinity());
    for (int i = 0; i < 5; ++i) {  // About the powers of two at which subnormal numbers end.
      all.push_back((std::uint64_t{1} << type.mantissa_bits) + static_cast<std::uint64_t>(i) - 2);
    }
    for (const std::uint64_t bits : all) {
      const Rational middle = (type.ValueOf(bits) + type.ValueOf(bits + 1)) / 2;
      // Smaller than what a double has left of the number, by far.
      const Rational little = middle / boost::multiprecision::pow(Integer(2), 90u);
      for (const Rational& value : {middle, Rational(middle + little), Rational(middle - little)}) {
        ExpectNearest(type, Print(value));
        ExpectNearest(type, Print(-value));
      }
    }
  }
}

TEST(InferJsonNumbersTest, ReadsEachHalf) {
  for (const FloatType& type : {kFloatTypes[2], kFloatTypes[3]}) {
    for (std::uint64_t bits = 0; bits < type.infinity(); bits += kStepOfHalves) {
      std::vector<std::string> numbers{Print(type.ValueOf(bits))};
      const absl::StatusOr<std::string> bytes = OneElement(type.name, numbers[0]);
      ASSERT_TRUE(bytes.ok()) << bytes.status();
      std::uint64_t read = 0;
      std::memcpy(&read, bytes->data(), 2);
      ASSERT_EQ(read, bits) << numbers[0];
    }
  }
}

TEST(InferJsonNumbersTest, ReadsIntegersExactly) {
  const auto expect = [](absl::string_view type, auto value) {
    const auto bytes = OneElement(type, absl::StrCat(value));
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    ASSERT_EQ(bytes->size(), sizeof(value));
    EXPECT_EQ(std::memcmp(bytes->data(), &value, sizeof(value)), 0) << value;
  };
  using Limits = std::numeric_limits<std::int64_t>;
  for (const std::int64_t value : {Limits::min(), Limits::min() + 1, Limits::max() - 1,
                                   Limits::max(), std::int64_t{0}, (std::int64_t{1} << 53) + 1}) {
    expect("INT64", value);
  }
  for (int value = -128; value < 128; ++value) {
    expect("INT8", static_cast<std::int8_t>(value));
    expect("UINT8", static_cast<std::uint8_t>(value + 128));
  }
}

TEST(InferJsonNumbersTest, RefusesElementsThatTheTypeDoesNotHold) {
  for (const absl::string_view type : {"FP32", "FP64", "FP16", "BF16", "INT8", "UINT8", "INT64"}) {
    for (const absl::string_view element : {"NaN",   "nan",   "Infinity", "-Infinity",
                                            "inf",   "null",  "true",     "false",
                                            "\"1\"", "\"\"",  "[]",       "[1]",
                                            "{}",    "1e400", "-1e400",   "1e99999999999999999999",
                                            "+1",    ".5",    "1.",       "01",
                                            "-",     "--1",   "1e",       "1e+",
                                            "0x1",   "1_0",   "1,",       "",
                                            "1 2",   "'1'",   "truee",    "nul"}) {
      const absl::Status status = OneElement(type, element).status();
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << type << " " << element;
      EXPECT_THAT(std::string(status.message()), HasSubstr("inputs[0].data")) << element;
    }
  }
  const std::pair<absl::string_view, absl::string_view> others[] = {
      {"INT64", "9223372036854775808"},
      {"INT64", "-9223372036854775809"},
      {"INT64", "1.0"},
      {"INT64", "1e3"},
      {"INT8", "128"},
      {"INT8", "-129"},
      {"UINT8", "256"},
      {"UINT8", "-1"},
      {"FP16", "65520"},
      {"BF16", "3.4e38999"},
      {"FP32", "3.5e38"},
      {"FP64", "1.8e308"}};
  for (const auto& [type, element] : others) {
    EXPECT_EQ(OneElement(type, element).status().code(), absl::StatusCode::kInvalidArgument)
        << type << " " << element;
  }
  EXPECT_EQ(OneElement("FP16", "65520").status().message(),
            "inputs[0].data[0]: 65520, wanted a finite FP16 number");
  EXPECT_EQ(OneElement("FP32", "NaN").status().message(),
            "inputs[0].data[0]: NaN, wanted a finite FP32 number");
  EXPECT_EQ(BytesOf("UINT8", "[2,2]", "[[1,2],[3,256]]").status().message(),
            "inputs[0].data[1][1]: 256, wanted an integer from 0 to 255");
}

}  // namespace
}  // namespace normd
