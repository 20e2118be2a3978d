#include "wire/infer_json_response.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "wire/data_type.h"
#include "wire/infer_parameter.h"
#include "wire/json_number.h"

namespace normd {
namespace {

// Appends a JSON string with its quotes. Bytes that are not UTF-8 become U+FFFD.
void AppendJsonText(absl::string_view text, std::string& out) {
  const auto is_plain = [](char c) { return c >= ' ' && c < '\x7f' && c != '"' && c != '\\'; };
  if (std::all_of(text.begin(), text.end(), is_plain)) {
    absl::StrAppend(&out, "\"", text, "\"");
    return;
  }
  out += nlohmann::json(std::string(text))
             .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

template <FloatFormat kFormat>
bool IsFinite(std::uint32_t bits) {
  return (bits & kFormat.infinity()) != kFormat.infinity();
}
bool IsFinite(double value) { return value - value == 0; }

// How elements of a type are written: null for a value that JSON cannot say.
template <FloatFormat kFormat, typename Bits>
struct SmallFloatElement {
  using Type = Bits;
  static char* Write(Type bits, char* out) {
    return IsFinite<kFormat>(bits) ? WriteNumber<kFormat>(bits, out) : nullptr;
  }
};
struct DoubleElement {
  using Type = double;
  static char* Write(Type value, char* out) {
    return IsFinite(value) ? WriteNumber(value, out) : nullptr;
  }
};
template <typename Int>
struct IntegerElement {
  using Type = Int;
  static char* Write(Type value, char* out) { return WriteNumber(std::int64_t{value}, out); }
};

// The most bytes of an element with the comma after it.
std::size_t MaxElementBytes(norm::DType dtype) {
  constexpr std::size_t kSmallFloat = sizeof("-0.000123456789,") - 1;
  switch (dtype) {
    case norm::DType::kFloat32:
    case norm::DType::kFloat16:
    case norm::DType::kBFloat16: return kSmallFloat;
    case norm::DType::kInt8:
    case norm::DType::kFloat8E4M3: return sizeof("-128,") - 1;
    case norm::DType::kFloat64:
    case norm::DType::kInt64: break;
  }
  return kMaxNumberBytes + 1;
}

// Appends the elements, separated by commas; the index of one that JSON cannot say, or -1.
template <typename Element>
std::ptrdiff_t AppendElements(ConstBytes data, std::string& out) {
  using Type = typename Element::Type;
  char buffer[4096];
  char* at = buffer;
  for (std::size_t offset = 0; offset < data.size(); offset += sizeof(Type)) {
    Type value;
    std::memcpy(&value, data.data() + offset, sizeof(value));
    char* const end = Element::Write(value, at);
    if (end == nullptr) return static_cast<std::ptrdiff_t>(offset / sizeof(Type));
    *end = ',';
    at = end + 1;
    if (std::end(buffer) - at > static_cast<std::ptrdiff_t>(kMaxNumberBytes)) continue;
    out.append(buffer, static_cast<std::size_t>(at - buffer));
    at = buffer;
  }
  out.append(buffer, static_cast<std::size_t>(at - buffer));
  if (!data.empty()) out.pop_back();
  return -1;
}

std::ptrdiff_t AppendElements(norm::DType dtype, ConstBytes data, std::string& out) {
  switch (dtype) {
    case norm::DType::kFloat32:
      return AppendElements<SmallFloatElement<kFloat32Format, std::uint32_t>>(data, out);
    case norm::DType::kFloat16:
      return AppendElements<SmallFloatElement<kFloat16Format, std::uint16_t>>(data, out);
    case norm::DType::kBFloat16:
      return AppendElements<SmallFloatElement<kBFloat16Format, std::uint16_t>>(data, out);
    case norm::DType::kFloat64: return AppendElements<DoubleElement>(data, out);
    case norm::DType::kInt8: return AppendElements<IntegerElement<std::int8_t>>(data, out);
    case norm::DType::kFloat8E4M3: return AppendElements<IntegerElement<std::uint8_t>>(data, out);
    case norm::DType::kInt64: return AppendElements<IntegerElement<std::int64_t>>(data, out);
  }
  return -1;
}

bool HasElements(const InferJsonOutput& output) {
  return !output.binary && output.shared_memory.region.empty();
}

// At least the bytes of the text.
std::size_t MaxBytes(const InferJsonResponse& response) {
  constexpr std::size_t kHeadBytes = 256;  // A message or a tensor, beside texts and shape.
  constexpr std::size_t kEscaped = 6;      // Bytes of one, at most.
  std::size_t bytes = kHeadBytes + kEscaped * (response.model.size() + response.version.size() +
                                               response.id.size());
  for (const InferJsonOutput& output : response.outputs) {
    bytes += kHeadBytes + kEscaped * (output.name.size() + output.shared_memory.region.size()) +
             output.shape.size() * (kMaxNumberBytes + 1);
    if (!HasElements(output)) continue;
    bytes += output.data.size() / norm::SizeOf(output.dtype) * MaxElementBytes(output.dtype);
  }
  return bytes;
}

absl::Status AppendOutput(std::size_t index, const InferJsonOutput& output, std::string& out) {
  absl::StrAppend(&out, index == 0 ? "" : ",", "{\"name\":");
  AppendJsonText(output.name, out);
  absl::StrAppend(&out, ",\"datatype\":\"", NamesOf(output.dtype).inference, "\",\"shape\":[");
  absl::string_view comma;
  for (const std::int64_t dim : output.shape) {
    absl::StrAppend(&out, comma, dim);
    comma = ",";
  }
  out += ']';
  const SharedPartHeader& part = output.shared_memory;
  if (!part.region.empty()) {
    absl::StrAppend(&out, ",\"parameters\":{\"", kRegionParameter, "\":");
    AppendJsonText(part.region, out);
    if (part.offset != 0) absl::StrAppend(&out, ",\"", kRegionOffsetParameter, "\":", part.offset);
    absl::StrAppend(&out, ",\"", kRegionBytesParameter, "\":", part.byte_size, "}}");
    return absl::OkStatus();
  }
  if (output.binary) {
    absl::StrAppend(&out, ",\"parameters\":{\"binary_data_size\":", output.data.size(), "}}");
    return absl::OkStatus();
  }
  out += ",\"data\":[";
  const std::ptrdiff_t refused = AppendElements(output.dtype, output.data, out);
  if (refused >= 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "outputs[", index, "].data[", refused,
        "]: NaN or infinite, which JSON cannot say, wanted its parameter \"binary_data\" true"));
  }
  out += "]}";
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> EncodeInferJson(const InferJsonResponse& response, TakeMemory take) {
  const std::size_t most = MaxBytes(response);
  absl::Status status = take(static_cast<std::int64_t>(most));
  if (!status.ok()) return status;
  std::string text;
  text.reserve(most);
  text += "{\"model_name\":";
  AppendJsonText(response.model, text);
  text += ",\"model_version\":";
  AppendJsonText(response.version, text);
  if (!response.id.empty()) {
    text += ",\"id\":";
    AppendJsonText(response.id, text);
  }
  text += ",\"outputs\":[";
  for (std::size_t i = 0; i < response.outputs.size(); ++i) {
    status = AppendOutput(i, response.outputs[i], text);
    if (!status.ok()) return status;
  }
  text += "]}";
  return text;
}

std::string EncodeJsonError(absl::string_view message) {
  std::string text = "{\"error\":";
  AppendJsonText(message, text);
  text += '}';
  return text;
}

}  // namespace normd
