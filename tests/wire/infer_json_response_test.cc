#include "wire/infer_json_response.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "wire/data_type.h"

namespace normd {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

absl::Status Grant(std::int64_t) { return absl::OkStatus(); }

template <typename T>
ConstBytes BytesOf(const std::vector<T>& elements) {
  return {reinterpret_cast<const std::byte*>(elements.data()), elements.size() * sizeof(T)};
}

absl::StatusOr<std::string> Encode(absl::Span<const InferJsonOutput> outputs) {
  return EncodeInferJson({.model = "m", .version = "1", .id = "", .outputs = outputs}, Grant);
}

// The tensor, as the text of an output has it, and read back by the decoder.
template <typename T>
std::vector<T> RoundTrip(norm::DType dtype, const std::vector<T>& elements, std::string& data) {
  const std::int64_t shape[] = {static_cast<std::int64_t>(elements.size())};
  const InferJsonOutput output{
      .name = "x", .dtype = dtype, .shape = shape, .data = BytesOf(elements)};
  const absl::StatusOr<std::string> text = Encode({&output, 1});
  if (!text.ok()) {
    ADD_FAILURE() << text.status();
    return {};
  }
  const std::size_t begin = text->find("\"data\":[") + 8;
  data = text->substr(begin, text->size() - begin - std::strlen("]}]}"));
  // An output of a response is an input of a request.
  std::string body = absl::StrCat("{\"inputs\"", text->substr(text->find("\"outputs\"") + 9));
  const std::size_t size = body.size();
  body.resize(size + kJsonPadding);
  const ConstBytes bytes(reinterpret_cast<const std::byte*>(body.data()), size);
  const auto request = DecodeInferJson({bytes, {}}, Grant);
  if (!request.ok()) {
    ADD_FAILURE() << request.status();
    return {};
  }
  const ReceivedInferTensor& tensor = request->view.inputs[0];
  std::vector<T> read(static_cast<std::size_t>(tensor.data_bytes) / sizeof(T));
  if (!read.empty()) {
    std::memcpy(read.data(), tensor.data[0].data(), read.size() * sizeof(T));
  }
  return read;
}

template <typename T>
void ExpectRoundTrip(norm::DType dtype, const std::vector<T>& elements) {
  std::string data;
  const std::vector<T> read = RoundTrip(dtype, elements, data);
  ASSERT_EQ(read.size(), elements.size());
  if (read.empty()) return;
  ASSERT_EQ(std::memcmp(read.data(), elements.data(), read.size() * sizeof(T)), 0) << data;
}

TEST(InferJsonResponseTest, WritesNumbersThatReadBackAsTheSameBits) {
  std::mt19937_64 random(7);
  std::vector<std::uint32_t> singles{0,          0x80000000, 1,          0x007fffff, 0x00800000,
                                     0x7f7fffff, 0xff7fffff, 0x3f800000, 0x4b800000, 0x4b7fffff};
  std::vector<std::uint64_t> doubles{
      0, std::uint64_t{1} << 63, 1, 0x7fefffffffffffff, 0x0010000000000000, 0x000fffffffffffff};
  std::vector<std::int64_t> longs{0, -1, std::numeric_limits<std::int64_t>::min(),
                                  std::numeric_limits<std::int64_t>::max()};
  for (std::uint32_t field = 1; field < 255; ++field) {  // Each power of two and its neighbours.
    for (const std::uint32_t step : {0u, 1u, 0xffffffffu}) singles.push_back((field << 23) + step);
  }
  for (int i = 0; i < 200'000; ++i) {
    const std::uint64_t bits = random();
    if ((bits & 0x7f800000) != 0x7f800000) singles.push_back(static_cast<std::uint32_t>(bits));
    if ((bits >> 52 & 0x7ff) != 0x7ff) doubles.push_back(bits);
    longs.push_back(static_cast<std::int64_t>(bits));
  }
  ExpectRoundTrip(norm::DType::kFloat32, singles);
  ExpectRoundTrip(norm::DType::kFloat64, doubles);
  ExpectRoundTrip(norm::DType::kInt64, longs);
  std::vector<std::uint8_t> bytes;
  for (int i = 0; i < 256; ++i) bytes.push_back(static_cast<std::uint8_t>(i));
  ExpectRoundTrip(norm::DType::kInt8, bytes);
  ExpectRoundTrip(norm::DType::kFloat8E4M3, bytes);
  ExpectRoundTrip(norm::DType::kFloat32, std::vector<float>());
}

int DigitsOf(absl::string_view number) {
  std::string digits;
  for (const char c : number.substr(0, number.find('e'))) {
    if (c >= '0' && c <= '9') digits += c;
  }
  digits.erase(0, digits.find_first_not_of('0'));
  while (!digits.empty() && digits.back() == '0') digits.pop_back();
  return static_cast<int>(digits.size());
}

std::vector<std::string> Split(const std::string& data) {
  std::vector<std::string> numbers(1);
  for (const char c : data) {
    if (c == ',') {
      numbers.emplace_back();
    } else {
      numbers.back() += c;
    }
  }
  return numbers;
}

TEST(InferJsonResponseTest, WritesFloatsWithTheFewestDigits) {
  std::mt19937 random(8);
  std::vector<float> floats{1, 0.1f, 1e10f, 16777216, 33554432, 1e-45f, 3.4028235e38f, 9.999999e9f};
  for (std::uint32_t field = 1; field < 255; ++field)
    floats.push_back(std::bit_cast<float>(field << 23));
  for (int i = 0; i < 100'000; ++i) {
    const float value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (std::isfinite(value)) floats.push_back(value);
  }
  std::string data;
  RoundTrip(norm::DType::kFloat32, floats, data);
  const std::vector<std::string> numbers = Split(data);
  ASSERT_EQ(numbers.size(), floats.size());
  for (std::size_t i = 0; i < floats.size(); ++i) {
    char shortest[32];
    const char* const end =
        std::to_chars(shortest, std::end(shortest), floats[i], std::chars_format::scientific).ptr;
    ASSERT_EQ(DigitsOf(numbers[i]),
              DigitsOf(std::string(shortest, static_cast<std::size_t>(end - shortest))))
        << numbers[i];
    ASSERT_LE(numbers[i].size(), 15u);
  }
}

// All of a type's numbers, and for each number of digits what its decimals are read as.
void ExpectFewestDigits(norm::DType dtype, std::uint16_t infinity) {
  std::vector<std::uint16_t> halves;
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    if ((bits & 0x7fff) < infinity) halves.push_back(static_cast<std::uint16_t>(bits));
  }
  std::string data;
  const std::vector<std::uint16_t> read = RoundTrip(dtype, halves, data);
  ASSERT_EQ(read, halves);
  const std::vector<std::string> numbers = Split(data);
  ASSERT_EQ(numbers.size(), halves.size());
  // What can be said with up to four digits; nothing of the two types needs more than five.
  std::string body = absl::StrCat(R"({"inputs":[{"name":"x","datatype":")",
                                  NamesOf(dtype).inference, R"(","shape":[)");
  std::vector<int> digits_of;
  std::string all;
  for (int exponent = -45; exponent < 39; ++exponent) {
    if (dtype == norm::DType::kFloat16 && (exponent < -11 || exponent > 4)) continue;
    for (int mantissa = 1; mantissa < 10'000; ++mantissa) {
      if (mantissa % 10 == 0) continue;
      const std::string number = absl::StrCat(mantissa, "e", exponent);
      if (std::stod(number) >= (dtype == norm::DType::kFloat16 ? 65519.0 : 3.396e38)) continue;
      absl::StrAppend(&all, digits_of.empty() ? "" : ",", number);
      digits_of.push_back(DigitsOf(number));
    }
  }
  absl::StrAppend(&body, digits_of.size(), "],\"data\":[", all, "]}]}");
  const std::size_t size = body.size();
  body.resize(size + kJsonPadding);
  const auto request = DecodeInferJson(
      {ConstBytes(reinterpret_cast<const std::byte*>(body.data()), size), {}}, Grant);
  ASSERT_TRUE(request.ok()) << request.status();
  std::vector<int> fewest(65536, 5);
  for (std::size_t i = 0; i < digits_of.size(); ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, request->view.inputs[0].data[0].data() + 2 * i, 2);
    fewest[bits] = std::min(fewest[bits], digits_of[i]);
  }
  for (std::size_t i = 0; i < halves.size(); ++i) {
    const std::uint16_t magnitude = halves[i] & 0x7fff;
    if (magnitude == 0) continue;
    ASSERT_EQ(DigitsOf(numbers[i]), fewest[magnitude]) << numbers[i];
  }
}

TEST(InferJsonResponseTest, WritesEachHalfWithTheFewestDigits) {
  ExpectFewestDigits(norm::DType::kFloat16, 0x7c00);
  ExpectFewestDigits(norm::DType::kBFloat16, 0x7f80);
}

TEST(InferJsonResponseTest, WritesWhatTheProtocolNames) {
  const std::int64_t shape[] = {2, 1};
  const std::vector<float> floats{0.5f, -0.0f};
  const std::vector<std::uint16_t> halves{0x3c00, 0x2e66};
  const InferJsonOutput outputs[] = {
      {.name = "a", .dtype = norm::DType::kFloat32, .shape = shape, .data = BytesOf(floats)},
      {.name = "b",
       .dtype = norm::DType::kFloat64,
       .shape = shape,
       .data = BytesOf(floats),
       .binary = true},
      {.name = "c",
       .dtype = norm::DType::kFloat8E4M3,
       .shape = {},
       .data = {},
       .shared_memory = {"region \"1\"", 64, 1},
       .binary = true},
      {.name = "d",
       .dtype = norm::DType::kFloat16,
       .shape = shape,
       .data = BytesOf(halves),
       .shared_memory = {"r", 0, 4}},
      {.name = "e", .dtype = norm::DType::kBFloat16, .shape = shape, .data = BytesOf(halves)}};
  const auto text = EncodeInferJson(
      {.model = "m\xff", .version = "3", .id = "a\"b\n", .outputs = outputs}, Grant);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(*text,
            R"({"model_name":"m)"
            "\xef\xbf\xbd"
            R"(","model_version":"3","id":"a\"b\n","outputs":[)"
            R"({"name":"a","datatype":"FP32","shape":[2,1],"data":[0.5,-0.0]},)"
            R"({"name":"b","datatype":"FP64","shape":[2,1],"parameters":{"binary_data_size":8}},)"
            R"({"name":"c","datatype":"UINT8","shape":[],"parameters":{"shared_memory_region":)"
            R"("region \"1\"","shared_memory_offset":64,"shared_memory_byte_size":1}},)"
            R"({"name":"d","datatype":"FP16","shape":[2,1],"parameters":{"shared_memory_region":)"
            R"("r","shared_memory_byte_size":4}},)"
            R"({"name":"e","datatype":"BF16","shape":[2,1],"data":[0.0078,5.23e-11]}]})");
  EXPECT_TRUE(Json::accept(*text));
  EXPECT_EQ(*Encode({}), R"({"model_name":"m","model_version":"1","outputs":[]})");
}

TEST(InferJsonResponseTest, RefusesWhatJsonCannotSay) {
  const auto refused = [](norm::DType dtype, ConstBytes data, std::int64_t at) {
    const std::int64_t shape[] = {static_cast<std::int64_t>(data.size() / norm::SizeOf(dtype))};
    InferJsonOutput output{.name = "x", .dtype = dtype, .shape = shape, .data = data};
    const absl::Status status = Encode({&output, 1}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status));
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat("outputs[0].data[", at, "]: NaN or infinite")));
    output.binary = true;
    EXPECT_TRUE(Encode({&output, 1}).ok());
  };
  for (const int bits : {0x7c00, 0xfc00, 0x7c01, 0x7e00, 0xffff}) {
    refused(norm::DType::kFloat16,
            BytesOf(std::vector<std::uint16_t>{0, static_cast<std::uint16_t>(bits)}), 1);
  }
  for (const int bits : {0x7f80, 0xff80, 0x7f81, 0xffff}) {
    refused(norm::DType::kBFloat16,
            BytesOf(std::vector<std::uint16_t>{static_cast<std::uint16_t>(bits)}), 0);
  }
  for (const double value :
       {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(),
        std::numeric_limits<double>::quiet_NaN()}) {
    refused(norm::DType::kFloat64, BytesOf(std::vector<double>(9, value)), 0);
    std::vector<float> floats(3000, 1.0f);
    floats[2999] = static_cast<float>(value);
    refused(norm::DType::kFloat32, BytesOf(floats), 2999);
  }
}

TEST(InferJsonResponseTest, AsksForAtLeastWhatItTakes) {
  const std::vector<double> worst(1000, -2.2250738585072014e-308);
  const std::int64_t shape[] = {1000};
  const std::string name(128, '\x01');
  const InferJsonOutput output{
      .name = name, .dtype = norm::DType::kFloat64, .shape = shape, .data = BytesOf(worst)};
  std::int64_t asked = 0;
  const auto text =
      EncodeInferJson({.model = name, .version = "1", .id = name, .outputs = {&output, 1}},
                      [&](std::int64_t bytes) {
                        asked += bytes;
                        return absl::OkStatus();
                      });
  ASSERT_TRUE(text.ok());
  EXPECT_LE(text->size(), static_cast<std::size_t>(asked));
  EXPECT_EQ(EncodeInferJson({.outputs = {&output, 1}},
                            [](std::int64_t) { return absl::ResourceExhaustedError("none left"); })
                .status(),
            absl::ResourceExhaustedError("none left"));
}

TEST(JsonErrorTest, EscapesAnyBytes) {
  EXPECT_EQ(EncodeJsonError("plain"), R"({"error":"plain"})");
  std::string all;
  for (int c = 0; c < 256; ++c) all += static_cast<char>(c);
  for (const std::string& message : {all, std::string("\xed\xa0\x80"), std::string("\xc3"),
                                     std::string("a\"b\\c\n"), std::string("\xc3\xa9")}) {
    const Json json = Json::parse(EncodeJsonError(message), nullptr, false);
    ASSERT_FALSE(json.is_discarded());
    if (message[0] != '\xc3') continue;
    EXPECT_EQ(json["error"], message.size() == 2 ? "\xc3\xa9" : "\xef\xbf\xbd");
  }
}

}  // namespace
}  // namespace normd
