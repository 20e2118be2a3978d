#include "client/normload/http_message.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "wire/data_type.h"

namespace normd::load {
namespace {

absl::string_view AsText(ConstBytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

absl::Status NotAResponse(absl::string_view what) {
  return absl::InternalError(
      absl::StrCat("the server's response is not an inference response: ", what));
}

// nlohmann's accessors throw for members that are missing or of another type.
absl::StatusOr<HttpOutputs> ReadOutputsOf(const nlohmann::json& json, ConstBytes rest) {
  HttpOutputs read;
  if (!absl::SimpleAtoi(json.at("model_version").get<std::string>(), &read.version)) {
    return NotAResponse("model_version is not a number");
  }
  for (const nlohmann::json& output : json.at("outputs")) {
    const auto datatype = output.at("datatype").get<std::string>();
    const DataTypeNames* type = FindDataType(&DataTypeNames::inference, datatype);
    if (type == nullptr) return NotAResponse("an output has an unknown datatype");
    const auto bytes = output.at("parameters").at("binary_data_size").get<std::size_t>();
    if (bytes > rest.size()) return NotAResponse("its tensors are longer than its body");
    absl::StatusOr<Shape> shape =
        Shape::Create(output.at("shape").get<std::vector<std::int64_t>>());
    if (!shape.ok()) return NotAResponse(shape.status().message());
    if (client::TensorBytes(type->dtype, *shape).value_or(-1) != static_cast<std::int64_t>(bytes)) {
      return NotAResponse("binary_data_size does not fit an output's shape");
    }
    read.specs.push_back({output.at("name").get<std::string>(), type->dtype, *std::move(shape)});
    read.bytes.push_back(rest.first(bytes));
    rest.remove_prefix(bytes);
  }
  if (!rest.empty()) return NotAResponse("its tensors are shorter than its body");
  return read;
}

absl::StatusCode CodeOfStatus(unsigned status) {
  constexpr std::pair<unsigned, absl::StatusCode> kCodes[] = {
      {400, absl::StatusCode::kInvalidArgument},   {401, absl::StatusCode::kUnauthenticated},
      {403, absl::StatusCode::kPermissionDenied},  {404, absl::StatusCode::kNotFound},
      {413, absl::StatusCode::kResourceExhausted}, {429, absl::StatusCode::kResourceExhausted},
      {501, absl::StatusCode::kUnimplemented},     {503, absl::StatusCode::kUnavailable},
      {504, absl::StatusCode::kDeadlineExceeded}};
  for (const auto& [number, code] : kCodes) {
    if (number == status) return code;
  }
  return status >= 500 ? absl::StatusCode::kInternal : absl::StatusCode::kUnknown;
}

}  // namespace

std::string HttpRequestText(const Item& item, std::int64_t version, absl::string_view host,
                            absl::string_view extra) {
  nlohmann::json json;
  for (std::size_t i = 0; i < item.inputs.size(); ++i) {
    const client::Tensor& tensor = item.inputs[i];
    const absl::Span<const std::int64_t> dims = tensor.shape().dims();
    const std::string& name = item.entry.inputs[i].name;
    // The protocol has no input without a name; every model calls its only one so.
    json["inputs"].push_back({{"name", name.empty() ? "x" : name},
                              {"datatype", std::string(NamesOf(tensor.dtype()).inference)},
                              {"shape", std::vector<std::int64_t>(dims.begin(), dims.end())},
                              {"parameters", {{"binary_data_size", tensor.bytes().size()}}}});
  }
  for (const std::string& name : item.entry.outputs) json["outputs"].push_back({{"name", name}});
  nlohmann::json& parameters = json["parameters"];
  parameters["binary_data_output"] = true;
  // From 1, high, to 3, low.
  if (item.entry.priority != Priority::kUnspecified) {
    parameters["priority"] = 4 - static_cast<int>(item.entry.priority);
  }
  const auto queue_timeout_us = (item.entry.queue_timeout.count() + 999) / 1000;
  if (queue_timeout_us > 0) parameters["timeout"] = queue_timeout_us;
  const std::string text = json.dump();
  const std::size_t bytes = text.size() + static_cast<std::size_t>(item.input_bytes());
  return absl::StrCat(
      "POST /v2/models/", item.entry.model, version == 0 ? "" : absl::StrCat("/versions/", version),
      "/infer HTTP/1.1\r\nHost: ", host,
      "\r\nContent-Type: application/octet-stream\r\nContent-Length: ", bytes,
      "\r\nInference-Header-Content-Length: ", text.size(), "\r\n", extra, "\r\n", text);
}

absl::StatusOr<HttpOutputs> ReadHttpOutputs(ConstBytes body, std::size_t json_bytes) {
  if (json_bytes > body.size()) return NotAResponse("its JSON is longer than its body");
  const nlohmann::json json = nlohmann::json::parse(AsText(body.first(json_bytes)), nullptr, false);
  try {
    return ReadOutputsOf(json, body.subspan(json_bytes));
  } catch (const nlohmann::json::exception& error) {
    return NotAResponse(error.what());
  }
}

absl::Status HttpError(unsigned status, ConstBytes body) {
  const nlohmann::json json = nlohmann::json::parse(AsText(body), nullptr, false);
  const nlohmann::json error =
      json.is_object() && json.contains("error") ? json["error"] : nlohmann::json();
  return absl::Status(CodeOfStatus(status), error.is_string()
                                                ? error.get<std::string>()
                                                : absl::StrCat("HTTP status ", status));
}

}  // namespace normd::load
