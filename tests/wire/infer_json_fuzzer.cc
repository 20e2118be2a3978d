// HTTP bodies of inference against a second parser of JSON: what is taken says there what was read,
// and what is right there is taken. An input is a JSON text, or '#', a byte with the length of what
// is binary at the end, and both.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/fuzz/expect.h"
#include "wire/data_type.h"
#include "wire/infer_json_request.h"
#include "wire/infer_json_response.h"

namespace normd::testing {
namespace {

using nlohmann::json;

struct Parsed {
  json value;  // Discarded: no JSON.
  bool huge;   // A number that the second parser refuses, though its form is right.
  bool twice;  // A key comes twice in one object: then the two keep different values.
};

Parsed Parse(absl::string_view text) {
  Parsed parsed{{}, false, false};
  std::vector<std::set<std::string>> keys;
  const auto note = [&](int, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key && !keys.back().insert(value).second) parsed.twice = true;
    return true;
  };
  try {
    parsed.value = json::parse(text.begin(), text.end(), note);
  } catch (const json::out_of_range&) {
    parsed.value = json(json::value_t::discarded);
    parsed.huge = true;
  } catch (const json::parse_error&) {
    parsed.value = json(json::value_t::discarded);
  }
  return parsed;
}

void Flatten(const json& data, std::vector<json>& elements) {
  if (!data.is_array()) return elements.push_back(data);
  for (const json& element : data) Flatten(element, elements);
}

double HalfOf(std::uint16_t bits, int mantissa_bits) {
  const int bias = mantissa_bits == 10 ? 15 : 127;
  const int field = (bits & 0x7fff) >> mantissa_bits;
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double magnitude =
      field == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                 : std::ldexp(mantissa + (1 << mantissa_bits), field - bias - mantissa_bits);
  return bits >> 15 != 0 ? -magnitude : magnitude;
}

template <typename T>
T At(ConstBytes bytes, std::size_t i) {
  T value;
  std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
  return value;
}

// The second parser keeps doubles: where that is the middle of two halves, both may be right.
void ExpectHalf(std::uint16_t bits, int mantissa_bits, double wanted) {
  const double read = HalfOf(bits, mantissa_bits);
  const auto distance = [&](std::uint16_t other) {
    return std::abs(HalfOf(other, mantissa_bits) - wanted);
  };
  Expect(std::signbit(read) == std::signbit(wanted) || wanted == 0, "a half keeps its sign");
  Expect(distance(bits) <= distance(static_cast<std::uint16_t>(bits + 1)), "no half is nearer");
  if ((bits & 0x7fff) != 0) {
    Expect(distance(bits) <= distance(static_cast<std::uint16_t>(bits - 1)), "no half is nearer");
  }
}

void ExpectElement(norm::DType dtype, ConstBytes bytes, std::size_t i, const json& wanted) {
  Expect(wanted.is_number(), "an element is a number", wanted.dump());
  const double number = wanted.get<double>();
  switch (dtype) {
    case norm::DType::kFloat64: return Expect(At<double>(bytes, i) == number, "float64 is right");
    case norm::DType::kFloat32: {
      const float read = At<float>(bytes, i);
      const auto nearest = static_cast<float>(number);
      const double middle = (double{read} + double{nearest}) / 2;
      Expect(read == nearest || middle == number || std::isinf(nearest), "float32 is the nearest",
             wanted.dump());
      return;
    }
    case norm::DType::kFloat16: return ExpectHalf(At<std::uint16_t>(bytes, i), 10, number);
    case norm::DType::kBFloat16: return ExpectHalf(At<std::uint16_t>(bytes, i), 7, number);
    case norm::DType::kInt8: return Expect(At<std::int8_t>(bytes, i) == wanted, "int8 is exact");
    case norm::DType::kFloat8E4M3:
      return Expect(At<std::uint8_t>(bytes, i) == wanted, "uint8 is exact");
    case norm::DType::kInt64:
      Expect(wanted.is_number_integer(), "an integer is one", wanted.dump());
      return Expect(At<std::int64_t>(bytes, i) == wanted, "int64 is exact");
  }
}

void ExpectTensor(const ReceivedInferTensor& tensor, const json& input) {
  Expect(input.value("name", "") == tensor.name, "an input's name is right");
  Expect(input.value("datatype", "") == tensor.datatype, "a datatype is right");
  Expect(input.value("shape", json::array()) ==
             json(std::vector<std::int64_t>(tensor.shape.begin(), tensor.shape.end())),
         "a shape is right");
  if (tensor.owned == nullptr) return;
  std::vector<json> elements;
  Flatten(input.at("data"), elements);
  const DataTypeNames* type = FindDataType(&DataTypeNames::inference, tensor.datatype);
  Expect(type != nullptr, "only known types are read");
  const std::size_t size = norm::SizeOf(type->dtype);
  Expect(elements.size() * size == tensor.owned->size(), "all elements are read");
  if (elements.empty()) return;
  Expect(tensor.data.size() == 1, "elements are in one piece");
  for (std::size_t i = 0; i < elements.size(); ++i) {
    ExpectElement(type->dtype, tensor.data[0], i, elements[i]);
  }
  // What is written of them is read as the same.
  const InferJsonOutput output{
      .name = tensor.name, .dtype = type->dtype, .shape = tensor.shape, .data = tensor.data[0]};
  const auto text = EncodeInferJson({.model = "m", .version = "1", .outputs = {&output, 1}},
                                    [](std::int64_t) { return absl::OkStatus(); });
  Expect(text.ok(), "what was read can be written");
  const json written = json::parse(*text, nullptr, false);
  Expect(!written.is_discarded(), "what is written is JSON", *text);
  const json& data = written["outputs"][0]["data"];
  for (std::size_t i = 0; i < elements.size(); ++i) {
    ExpectElement(type->dtype, tensor.data[0], i, data[i]);
  }
}

// Whether there is no doubt that the request is right: it has inputs of a few known keys alone.
bool IsPlain(const json& value) {
  if (!value.is_object() || value.size() != 1 || !value.contains("inputs")) return false;
  const json& inputs = value["inputs"];
  if (!inputs.is_array() || inputs.empty() || inputs.size() > kMaxTensors) return false;
  for (const json& input : inputs) {
    if (!input.is_object() || input.size() != 3 || !input.contains("datatype") ||
        !input.contains("shape") || !input.contains("data")) {
      return false;
    }
    if (input["datatype"] != "FP64" && input["datatype"] != "INT8") return false;
    const json& data = input["data"];
    if (input["shape"] != json::array({data.size()}) || !data.is_array()) return false;
    for (const json& element : data) {
      if (!element.is_number()) return false;
      if (input["datatype"] == "FP64") continue;
      if (!element.is_number_integer() || element < -128 || element > 127) return false;
    }
  }
  return true;
}

void Check(const std::string& input) {
  const bool header = input.size() >= 2 && input[0] == '#';
  const std::size_t skip = header ? 2 : 0;
  const std::size_t size = input.size() - skip;
  const std::size_t binary =
      header ? std::min<std::size_t>(static_cast<unsigned char>(input[1]), size) : 0;
  std::string bytes = input.substr(skip);
  if (size % 2 == 0) bytes += '\0';  // Then the text is not copied.
  bytes.append(kJsonPadding, '9');
  InferJsonBody body{ConstBytes(reinterpret_cast<const std::byte*>(bytes.data()), size), {}};
  if (header) body.json_bytes = static_cast<std::int64_t>(size - binary);
  const absl::string_view text(bytes.data(), size - binary);
  std::int64_t taken = 0;
  const auto take = [&](std::int64_t more) {
    taken += more;
    return absl::OkStatus();
  };
  const auto request = DecodeInferJson(body, take);
  Expect(taken <= static_cast<std::int64_t>(9 * text.size()), "a body takes memory as it is long");
  const Parsed parsed = Parse(text);
  if (!request.ok()) {
    ExpectMessage(request.status().message(), 512);
    const bool has_zero = text.find('\0') != text.npos;  // The second parser takes it for the end.
    if (!parsed.value.is_discarded() && !parsed.twice && binary == 0 && !has_zero) {
      Expect(!IsPlain(parsed.value), "what is plainly right is taken", request.status().message());
    }
    return;
  }
  Expect(!parsed.value.is_discarded() || parsed.huge, "what is taken is JSON", text);
  if (parsed.value.is_discarded() || parsed.twice) return;
  Expect(request->view.id == parsed.value.value("id", ""), "the id is right");
  const json& inputs = parsed.value["inputs"];
  Expect(inputs.size() == request->view.inputs.size(), "each input is read");
  std::size_t left = binary;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const ReceivedInferTensor& tensor = request->view.inputs[i];
    ExpectTensor(tensor, inputs[i]);
    if (tensor.owned != nullptr || tensor.data_bytes == 0) continue;
    Expect(tensor.data[0].data() == body.bytes.data() + size - left, "binary data is not copied");
    left -= static_cast<std::size_t>(tensor.data_bytes);
  }
  Expect(left == 0, "all binary data is some tensor's");
}

}  // namespace
}  // namespace normd::testing

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  normd::testing::Check(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
