#include "wire/infer_json_request.h"
#include "absl/strings/str_split.h"

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
#include "absl/strings/str_join.h"

namespace normd {
namespace {

using ::testing::HasSubstr;
using Rational = boost::multiprecision::cpp_rational;
using Integer = boost::multiprecision::cpp_int;

absl::Status TakeAll(std::int64_t) { return absl::OkStatus(); }

// A body with what must be readable behind it: something that would change what is read.
class Body {
 public:
  explicit Body(absl::string_view text, absl::string_view binary = "", bool header = false)
      : text_(text.size()), header_(header) {
    bytes_ = absl::StrCat(text, binary);
    size_ = bytes_.size();
    // Half of the texts have the zero behind them with which they are not copied.
    if (size_ % 2 == 0) bytes_ += '\0';
    for (std::size_t i = 0; i < kJsonPadding; ++i) bytes_ += "9]}\""[i % 4];
  }

  InferJsonBody view() const {
    InferJsonBody body{ConstBytes(reinterpret_cast<const std::byte*>(bytes_.data()), size_), {}};
    if (header_) body.json_bytes = static_cast<std::int64_t>(text_);
    return body;
  }

 private:
  std::string bytes_;
  std::size_t size_ = 0;
  const std::size_t text_;
  const bool header_;
};

// The body that owns what the views are of has to stay.
struct Decoded {
  Body body;
  absl::StatusOr<InferJsonRequest> request;
};
Decoded Decode(absl::string_view text, absl::string_view binary = "", bool header = false) {
  Decoded decoded{Body(text, binary, header), absl::UnknownError("")};
  decoded.request = DecodeInferJson(decoded.body.view(), TakeAll);
  return decoded;
}

std::string BytesOf(const ReceivedInferTensor& tensor) {
  std::string bytes;
  for (const ConstBytes view : tensor.data) {
    bytes.append(reinterpret_cast<const char*>(view.data()), view.size());
  }
  EXPECT_EQ(bytes.size(), static_cast<std::size_t>(tensor.data_bytes));
  return bytes;
}

// The bytes of the only input, or the error.
absl::StatusOr<std::string> BytesOf(absl::string_view datatype, absl::string_view shape,
                                    absl::string_view data) {
  const Decoded decoded = Decode(absl::StrCat(R"({"inputs":[{"name":"x","datatype":")", datatype,
                                              R"(","shape":)", shape, R"(,"data":)", data, "}]}"));
  if (!decoded.request.ok()) return decoded.request.status();
  return BytesOf(decoded.request->view.inputs[0]);
}

absl::StatusOr<std::string> OneElement(absl::string_view datatype, absl::string_view number) {
  return BytesOf(datatype, "[1]", absl::StrCat("[", number, "]"));
}

std::string ErrorOf(absl::string_view text) {
  const Decoded decoded = Decode(text);
  EXPECT_TRUE(absl::IsInvalidArgument(decoded.request.status())) << text;
  return std::string(decoded.request.status().message());
}

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

TEST(InferJsonRequestTest, ReadsNumbersAsTheNearestOfTheirType) {
  for (const FloatType& type : kFloatTypes) {
    for (const absl::string_view number : absl::StrSplit(kNumbers, ' ')) {
      ExpectNearest(type, number);
    }
  }
}

// Texts that a double cannot tell from the middle between two numbers of a smaller type.
TEST(InferJsonRequestTest, RoundsOnceNearTheMiddleOfTwoNumbers) {
  std::mt19937_64 random(40);
  for (const FloatType& type : kFloatTypes) {
    std::vector<std::uint64_t> all{0, 1, 2, 3, type.infinity() - 1, type.infinity() - 2};
    for (int i = 0; i < 300; ++i) all.push_back(random() % type.infinity());
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

TEST(InferJsonRequestTest, ReadsEachHalf) {
  for (const FloatType& type : {kFloatTypes[2], kFloatTypes[3]}) {
    for (std::uint64_t bits = 0; bits < type.infinity(); bits += 1) {
      std::vector<std::string> numbers{Print(type.ValueOf(bits))};
      const absl::StatusOr<std::string> bytes = OneElement(type.name, numbers[0]);
      ASSERT_TRUE(bytes.ok()) << bytes.status();
      std::uint64_t read = 0;
      std::memcpy(&read, bytes->data(), 2);
      ASSERT_EQ(read, bits) << numbers[0];
    }
  }
}

TEST(InferJsonRequestTest, ReadsIntegersExactly) {
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

TEST(InferJsonRequestTest, RefusesElementsThatTheTypeDoesNotHold) {
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

// Prints numbers from 0 on as nested arrays of this shape.
std::string Nested(const std::vector<int>& shape, std::size_t level, int& next) {
  if (level == shape.size()) return absl::StrCat(next++);
  std::vector<std::string> parts;
  for (int i = 0; i < shape[level]; ++i) parts.push_back(Nested(shape, level + 1, next));
  return absl::StrCat("[", absl::StrJoin(parts, " , "), "\n]");
}

TEST(InferJsonRequestTest, TakesDataFlatOrNestedAsItsShape) {
  for (const std::vector<int>& shape : std::vector<std::vector<int>>{
           {1}, {7}, {2, 3}, {1, 1}, {3, 1, 2}, {0}, {2, 0}, {0, 2}, {2, 0, 3}, {2, 2, 2, 2, 2}}) {
    int count = 0;
    const std::string nested = Nested(shape, 0, count);
    int unused = 0;
    const std::string flat = Nested({count}, 0, unused);
    for (const absl::string_view type : {"FP32", "FP64", "FP16", "BF16", "INT8", "INT64"}) {
      const std::string dims = absl::StrCat("[", absl::StrJoin(shape, ","), "]");
      const auto from_flat = BytesOf(type, dims, flat);
      const auto from_nested = BytesOf(type, dims, nested);
      ASSERT_TRUE(from_flat.ok()) << from_flat.status();
      ASSERT_TRUE(from_nested.ok()) << from_nested.status();
      EXPECT_EQ(*from_flat, *from_nested);
      if (type != "INT8") continue;
      ASSERT_EQ(from_flat->size(), static_cast<std::size_t>(count));
      for (int i = 0; i < count; ++i) EXPECT_EQ((*from_flat)[static_cast<std::size_t>(i)], i);
    }
  }
  EXPECT_EQ(*BytesOf("INT8", "[]", "[5]"), std::string(1, '\5'));  // A scalar.
}

TEST(InferJsonRequestTest, RefusesAnotherNesting) {
  const std::pair<absl::string_view, absl::string_view> cases[] = {
      {"[1,2,3]", "inputs[0].data: 3 elements, wanted 4, as its shape says"},
      {"[1,2,3,4,5]", "inputs[0].data: more than 4 elements, wanted 4, as its shape says"},
      {"[]", "inputs[0].data: at most 2 elements, wanted 4, as its shape says"},
      {"[     ]", "inputs[0].data: 0 elements, wanted 4, as its shape says"},
      {"[[1,2]]", "inputs[0].data: 1 elements, wanted 2, as its shape says"},
      {"[[1,2],[3,4],[5,6]]", "inputs[0].data: more than 2 elements, wanted 2, as its shape says"},
      {"[[1,2],[3]]", "inputs[0].data[1]: 1 elements, wanted 2, as its shape says"},
      {"[[1,2],[3,4,5]]", "inputs[0].data[1]: more than 2 elements, wanted 2, as its shape says"},
      {"[[1,2],3,4]", "inputs[0].data[1]: 3, wanted an array"},
      {"[1,2,[3,4]]", "inputs[0].data[2]: an array, wanted a finite FP32 number"},
      {"[[[1],[2]],[3,4]]", "inputs[0].data[0][0]: an array, wanted a finite FP32 number"},
      {"4", "inputs[0].data: 4, wanted an array"},
      {"\"AAAA\"", "inputs[0].data: text, wanted an array"}};
  for (const auto& [data, error] : cases) {
    EXPECT_EQ(BytesOf("FP32", "[2,2]", data).status().message(), error) << data;
  }
}

TEST(InferJsonRequestTest, ReadsFieldsInAnyOrder) {
  const Decoded decoded = Decode(
      R"( { "outputs" : [ { "parameters" : { "binary_data" : false } , "name" : "y" },)"
      R"( {"name":"z"}, {"name":"w","parameters":{"classification":3}} ],)"
      R"( "parameters":{"binary_data_output":true,"priority":1,"timeout":18446744073709551615},)"
      R"( "inputs":[{"data":[[1,2]],"shape":[1,2],"parameters":{"a":1.5,"b":null0},"datatype":)"
      R"("INT8","n\u0061me":"x\u00e9\n"}],"id":"\"q\"" } )");
  EXPECT_FALSE(decoded.request.ok());  // null0
  const Decoded right = Decode(
      R"( { "outputs" : [ { "parameters" : { "binary_data" : false } , "name" : "y" },)"
      R"( {"name":"z"}, {"name":"w","parameters":{"classification":3}} ],)"
      R"( "parameters":{"binary_data_output":true,"priority":1,"timeout":18446744073709551615},)"
      R"( "inputs":[{"data":[[1,2]],"shape":[1,2],"parameters":{"a":1.5,"b":"c"},"datatype":)"
      R"("INT8","n\u0061me":"x\u00e9\n"}],"id":"\"q\"" } )");
  ASSERT_TRUE(right.request.ok()) << right.request.status();
  const InferRequestView& view = right.request->view;
  EXPECT_EQ(view.id, "\"q\"");
  EXPECT_EQ(view.priority.number, 1);
  EXPECT_TRUE(view.timeout.IsHuge());
  EXPECT_EQ(view.timeout.Digits(), "18446744073709551615");
  ASSERT_EQ(view.inputs.size(), 1u);
  EXPECT_EQ(view.inputs[0].name, "x\xc3\xa9\n");
  EXPECT_EQ(BytesOf(view.inputs[0]), "\1\2");
  ASSERT_EQ(view.outputs.size(), 3u);
  EXPECT_EQ(view.outputs[2].classification.number, 3);
  EXPECT_THAT(right.request->binary, ::testing::ElementsAre(false, true, true));
  EXPECT_TRUE(right.request->all_binary);
}

TEST(InferJsonRequestTest, KeepsSharedMemoryAsGrpcDoes) {
  const Decoded decoded =
      Decode(R"({"inputs":[{"name":"x","parameters":{"shared_memory_region":"r",)"
             R"("shared_memory_byte_size":8,"shared_memory_offset":-1}},)"
             R"({"name":"y","parameters":{"shared_memory_what":true}}],)"
             R"("outputs":[{"name":"z","parameters":{"shared_memory_region":7}}]})");
  ASSERT_TRUE(decoded.request.ok()) << decoded.request.status();
  const InferRequestView& view = decoded.request->view;
  ASSERT_NE(view.inputs[0].shared_memory, nullptr);
  EXPECT_EQ(view.inputs[0].shared_memory->region.text, "r");
  EXPECT_EQ(view.inputs[0].shared_memory->byte_size.number, 8);
  EXPECT_EQ(view.inputs[0].shared_memory->offset.number, -1);
  EXPECT_EQ(view.inputs[1].shared_memory->unknown, "shared_memory_what");
  EXPECT_EQ(view.outputs[0].shared_memory->region.kind, ReceivedParameter::Kind::kInt);
}

TEST(InferJsonRequestTest, LeavesBinaryTensorsWhereTheyAre) {
  const std::string text =
      R"({"inputs":[{"name":"a","parameters":{"binary_data_size":3}},{"name":"b","datatype":"INT8",)"
      R"("shape":[1],"data":[7]},{"name":"c","parameters":{"binary_data_size":0}},)"
      R"({"name":"d","parameters":{"binary_data_size":2}}]})";
  const Decoded decoded = Decode(text, "abcde", true);
  ASSERT_TRUE(decoded.request.ok()) << decoded.request.status();
  const ReceivedInferTensors& inputs = decoded.request->view.inputs;
  EXPECT_EQ(BytesOf(inputs[0]), "abc");
  EXPECT_EQ(BytesOf(inputs[1]), "\7");
  EXPECT_EQ(BytesOf(inputs[2]), "");
  EXPECT_EQ(BytesOf(inputs[3]), "de");
  EXPECT_EQ(inputs[0].data[0].data(), decoded.body.view().bytes.data() + text.size());
  EXPECT_EQ(inputs[0].owned, nullptr);

  EXPECT_THAT(std::string(Decode(text, "abcdef", true).request.status().message()),
              HasSubstr("1 bytes after the last binary tensor"));
  EXPECT_THAT(std::string(Decode(text, "abcd", true).request.status().message()),
              HasSubstr("inputs[3].parameters[\"binary_data_size\"]: 2, wanted at most 1"));
  EXPECT_FALSE(Decode(text).request.ok());
  for (const absl::string_view size : {"-1", "9223372036854775807", "18446744073709551615", "1.5",
                                       "\"3\"", "true", "null", "[3]"}) {
    const std::string bad =
        absl::StrCat(R"({"inputs":[{"name":"a","parameters":{"binary_data_size":)", size, "}}]}");
    EXPECT_TRUE(absl::IsInvalidArgument(Decode(bad, "abc", true).request.status())) << size;
  }
  EXPECT_THAT(std::string(Decode(R"({"inputs":[{"data":[1],"parameters":{"binary_data_size":1}}]})",
                                 "a", true)
                              .request.status()
                              .message()),
              HasSubstr("inputs[0].data: beside binary_data_size"));
}

TEST(InferJsonRequestTest, ChecksTheLengthOfTheText) {
  Body body(R"({"inputs":[{}]})");
  for (const std::int64_t length :
       {std::int64_t{-1}, std::int64_t{16}, std::numeric_limits<std::int64_t>::max(),
        std::numeric_limits<std::int64_t>::min()}) {
    InferJsonBody view = body.view();
    view.json_bytes = length;
    const absl::Status status = DecodeInferJson(view, TakeAll).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status));
    EXPECT_THAT(std::string(status.message()), HasSubstr("Inference-Header-Content-Length"));
  }
  for (std::int64_t length = 0; length < 15; ++length) {
    InferJsonBody view = body.view();
    view.json_bytes = length;
    EXPECT_TRUE(absl::IsInvalidArgument(DecodeInferJson(view, TakeAll).status())) << length;
  }
}

// Each beginning of a good body is refused, and so is each with a byte more.
TEST(InferJsonRequestTest, RefusesWhatIsNotOneJsonObject) {
  const std::string good = R"({"id":"\u00e9","inputs":[{"data":[[1.5e3],[-2]],"name":"x",)"
                           R"("datatype":"FP32","shape":[2,1]}],"more":[true,{"a":null}]})";
  ASSERT_TRUE(Decode(good).request.ok());
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_TRUE(absl::IsInvalidArgument(Decode(good.substr(0, size)).request.status())) << size;
  }
  for (const absl::string_view more : {"}", "{}", ",", "1", "null", "\"\"", "]", "x", "\xff"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(Decode(good + std::string(more)).request.status())) << more;
  }
  for (const absl::string_view text : {"[]",
                                       "1",
                                       "null",
                                       "\"\"",
                                       " ",
                                       "\xef\xbb\xbf{}",
                                       "{\"inputs\":[{}],}",
                                       "{,}",
                                       "{\"a\"}",
                                       "{\"a\":}",
                                       "{a:1}",
                                       "{'a':1}",
                                       "{\"inputs\":[{},]}",
                                       "{\"inputs\":[{}]",
                                       "{\"a\":[1}",
                                       "{\"a\":{]}",
                                       "{\"a\":\"\\x\"}",
                                       "{\"a\":\"\\ud800\"}",
                                       "{\"a\":\"\n\"}",
                                       "{\"a\":\"\xc3\"}",
                                       "{\"\\ud83d\":1}",
                                       "{\"a\":tru}",
                                       "{\"a\":1.}",
                                       "{\"a\":[1 2]}",
                                       "{\"a\" 1}",
                                       "{1:1}",
                                       "//\n{}",
                                       "{\"inputs\":[{\"name\":\"\\u00\"}]}"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(Decode(text).request.status())) << text;
  }
}

// What is behind a text that is cut off belongs to it least of all when it would complete it.
TEST(InferJsonRequestTest, ReadsNothingBehindTheText) {
  const std::string good = R"({"inputs":[{"parameters":{"binary_data_size":0},"shape":[2,1]},{}],)"
                           R"("outputs":[{"name":"y"}],"parameters":{"a":1},"b":{}})";
  for (std::size_t size = 0; size < good.size(); ++size) {
    for (const std::string& behind : {good.substr(size), std::string("}"), std::string("]}"),
                                      std::string(","), std::string(",{"), std::string("}}}}")}) {
      EXPECT_TRUE(
          absl::IsInvalidArgument(Decode(good.substr(0, size), behind, true).request.status()))
          << good.substr(0, size);
    }
  }
}

TEST(InferJsonRequestTest, NamesTheFieldThatItRefuses) {
  const std::string long_text(2000, 'a');
  const std::pair<std::string, std::string> cases[] = {
      {R"({})", "inputs: none, wanted at least one"},
      {R"({"inputs":[]})", "inputs: none, wanted at least one"},
      {R"({"inputs":{}})", "inputs: an object, wanted an array"},
      {R"({"inputs":[1]})", "inputs[0]: 1, wanted an object"},
      {R"({"inputs":[{},null]})", "inputs[1]: null, wanted an object"},
      {R"({"inputs":[{"name":1}]})", "inputs[0].name: 1, wanted text"},
      {R"({"inputs":[{"datatype":[]}]})", "inputs[0].datatype: an array, wanted text"},
      {R"({"inputs":[{"shape":1}]})", "inputs[0].shape: 1, wanted an array"},
      {R"({"inputs":[{"shape":["1"]}]})", "inputs[0].shape: text, wanted integers of 64 bits"},
      {R"({"inputs":[{"shape":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]}]})",
       "inputs[0].shape: more than 16 dimensions, wanted at most 16"},
      {R"({"inputs":[{"name":"a","name":"a"}]})", "inputs[0]: name twice, wanted it once"},
      {R"({"inputs":[{"data":[],"data":[]}]})", "inputs[0]: data twice, wanted it once"},
      {R"({"inputs":[{}],"inputs":[{}]})", "inputs twice, wanted it once"},
      {R"({"id":"a","id":"a"})", "id twice, wanted it once"},
      {R"({"id":1})", "id: 1, wanted text"},
      {R"({"parameters":{"priority":1,"priority":1}})",
       "parameters: priority twice, wanted it once"},
      {R"({"parameters":[]})", "parameters: an array, wanted an object"},
      {R"({"parameters":{"a":[]}})",
       "parameters[\"a\"]: an array, wanted true, false, a number or text"},
      {R"({"parameters":{"binary_data_output":1}})",
       "parameters[\"binary_data_output\"]: not a boolean, wanted true or false"},
      {R"({"outputs":[{"parameters":{"binary_data":"true"}}]})",
       "outputs[0].parameters[\"binary_data\"]: not a boolean, wanted true or false"},
      {R"({"outputs":1})", "outputs: 1, wanted an array"},
      {absl::StrCat(R"({"id":")", long_text, "\"}"), "id: 2000 bytes, wanted at most 1024"},
      {absl::StrCat(R"({"inputs":[{"name":")", long_text, "\"}]}"),
       "inputs[0].name: 2000 bytes, wanted at most 128"},
      {absl::StrCat(R"({"parameters":{")", long_text, R"(":1}})"),
       "parameters: 2000 bytes, wanted at most 1024"},
      {absl::StrCat(R"({"parameters":{"a":")", long_text, "\"}}"),
       "parameters[\"a\"]: 2000 bytes, wanted at most 1024"}};
  for (const auto& [text, error] : cases) EXPECT_EQ(ErrorOf(text), error) << text;
}

TEST(InferJsonRequestTest, LimitsListsAndDepth) {
  const auto list = [](absl::string_view name, int count) {
    return absl::StrCat(
        "{\"", name, "\":[",
        absl::StrJoin(std::vector<std::string>(static_cast<std::size_t>(count), "{}"), ","), "]}");
  };
  EXPECT_TRUE(Decode(list("inputs", 32)).request.ok());
  EXPECT_EQ(ErrorOf(list("inputs", 33)), "inputs: more than 32, wanted at most 32");
  EXPECT_EQ(ErrorOf(list("outputs", 33)), "outputs: more than 32, wanted at most 32");
  const auto deep = [](std::size_t depth) {
    return absl::StrCat(R"({"inputs":[{}],"a":)", std::string(depth, '['), std::string(depth, ']'),
                        "}");
  };
  EXPECT_TRUE(Decode(deep(100)).request.ok());
  EXPECT_THAT(ErrorOf(deep(101)), HasSubstr("more than 100 levels"));
  EXPECT_THAT(ErrorOf(deep(1'000'000)), HasSubstr("more than 100 levels"));
  const std::string many(1'000'000, '[');
  EXPECT_TRUE(absl::IsInvalidArgument(Decode(absl::StrCat("{\"a\":", many)).request.status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Decode(many).request.status()));
  EXPECT_FALSE(BytesOf("FP32", "[1,1]", std::string(100'000, '[')).ok());
}

// What cannot be read for what it is, is looked at and dropped, and refused later, in gRPC's words.
TEST(InferJsonRequestTest, DropsDataOfUnknownTypesAndImpossibleShapes) {
  for (const auto& [type, shape] :
       std::vector<std::pair<std::string, std::string>>{{"FP8", "[1]"},
                                                        {"BYTES", "[1]"},
                                                        {"", "[1]"},
                                                        {"FP32", "[-1]"},
                                                        {"FP32", "[4294967296,4294967296]"}}) {
    const auto bytes = BytesOf(type, shape, R"([1,"a",[null],{"b":true}])");
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    EXPECT_EQ(*bytes, "");
    EXPECT_FALSE(BytesOf(type, shape, "[1,NaN]").ok());
  }
}

TEST(InferJsonRequestTest, AsksBeforeItTakesMemory) {
  const std::string text =
      R"({"inputs":[{"name":"x","datatype":"FP64","shape":[3],"data":[1,2,3]},)"
      R"({"name":"x","datatype":"INT8","shape":[2],"data":[1,2]}]})";
  const Body body(text);
  std::vector<std::int64_t> asked;
  const auto request = DecodeInferJson(body.view(), [&](std::int64_t bytes) {
    asked.push_back(bytes);
    return absl::OkStatus();
  });
  ASSERT_TRUE(request.ok());
  const auto index = static_cast<std::int64_t>(text.size() * 5);
  EXPECT_THAT(asked, ::testing::ElementsAre(index, 24, 2));
  EXPECT_EQ(request->freed_bytes, index);
  for (std::size_t refused = 0; refused < 3; ++refused) {
    std::size_t calls = 0;
    const absl::Status status =
        DecodeInferJson(body.view(), [&](std::int64_t) {
          return calls++ == refused ? absl::ResourceExhaustedError("none left") : absl::OkStatus();
        }).status();
    EXPECT_EQ(status, absl::ResourceExhaustedError("none left"));
    EXPECT_EQ(calls, refused + 1);
  }
  // A shape alone takes no memory.
  EXPECT_THAT(std::string(BytesOf("FP64", "[1000000000000]", "[1,2]").status().message()),
              HasSubstr("wanted 1000000000000, as its shape says"));
}

}  // namespace
}  // namespace normd
