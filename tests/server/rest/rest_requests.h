// The Open Inference Protocol's requests as HTTP has them, and a server that takes them.

#ifndef NORMD_TESTS_SERVER_REST_REST_REQUESTS_H_
#define NORMD_TESTS_SERVER_REST_REST_REQUESTS_H_

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "inference/grpc_service.pb.h"
#include "nlohmann/json.hpp"
#include "tests/server/rest/rest_client.h"
#include "tests/server/rpc/infer_requests.h"
#include "tests/server/rpc/test_server.h"

namespace normd::testing {

struct RestBody {
  std::string headers;
  std::string body;
};

inline nlohmann::json ToJson(const inference::InferParameter& parameter) {
  if (parameter.has_bool_param()) return parameter.bool_param();
  if (parameter.has_int64_param()) return parameter.int64_param();
  if (parameter.has_uint64_param()) return parameter.uint64_param();
  if (parameter.has_double_param()) return parameter.double_param();
  return parameter.string_param();
}

template <typename Map>
nlohmann::json ToJson(const Map& parameters) {
  nlohmann::json json = nlohmann::json::object();
  for (const auto& [key, value] : parameters) json[key] = ToJson(value);
  return json;
}

// The same request, with its raw contents as binary tensors, which the outputs are too.
inline RestBody ToBinary(const inference::ModelInferRequest& request) {
  nlohmann::json json = {{"inputs", nlohmann::json::array()}};
  std::string data;
  int raw = 0;
  for (const auto& input : request.inputs()) {
    nlohmann::json one = {{"name", input.name()}, {"datatype", input.datatype()}};
    one["shape"] = nlohmann::json::array();
    for (const std::int64_t size : input.shape()) one["shape"].push_back(size);
    one["parameters"] = ToJson(input.parameters());
    if (!input.parameters().contains("shared_memory_region")) {
      const std::string& bytes = request.raw_input_contents(raw++);
      one["parameters"]["binary_data_size"] = bytes.size();
      data += bytes;
    }
    json["inputs"].push_back(std::move(one));
  }
  for (const auto& output : request.outputs()) {
    json["outputs"].push_back(
        {{"name", output.name()}, {"parameters", ToJson(output.parameters())}});
    json["outputs"].back()["parameters"]["binary_data"] = true;
  }
  json["parameters"] = ToJson(request.parameters());
  json["parameters"]["binary_data_output"] = true;
  if (!request.id().empty()) json["id"] = request.id();
  const std::string text = json.dump();
  return {absl::StrCat("Inference-Header-Content-Length: ", text.size(), "\r\n"), text + data};
}

// The same request, whose tensors are float32, with every number in JSON.
inline std::string ToText(const inference::ModelInferRequest& request) {
  nlohmann::json json = {{"inputs", nlohmann::json::array()}};
  for (int i = 0; i < request.inputs_size(); ++i) {
    const std::string& bytes = request.raw_input_contents(i);
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    nlohmann::json one = {{"name", request.inputs(i).name()}, {"datatype", "FP32"}};
    one["shape"] = nlohmann::json::array();
    for (const std::int64_t size : request.inputs(i).shape()) one["shape"].push_back(size);
    one["data"] = values;
    json["inputs"].push_back(std::move(one));
  }
  return json.dump();
}

// One that a server of the demo models takes, whole.
inline constexpr char kInfer[] = "/v2/models/layer_norm_1024/infer";
inline RestBody GoodBody(std::int64_t rows = 1) {
  return ToBinary(ToInfer(MakeRequest("layer_norm_1024", {rows, 1024})));
}
inline std::string GoodRequest(std::int64_t rows = 1, const std::string& headers = "") {
  const RestBody body = GoodBody(rows);
  return PostText(kInfer, body.body, body.headers + headers);
}

inline TestServerOptions WithRest(RestOptions rest = {}) {
  TestServerOptions options;
  options.rest = std::move(rest);
  return options;
}

inline std::string InferPath(const inference::ModelInferRequest& request) {
  std::string path = "/v2/models/" + request.model_name();
  if (!request.model_version().empty()) path += "/versions/" + request.model_version();
  return path + "/infer";
}

// The binary tensors of a response.
inline std::string BinaryOf(const RestAnswer& answer) {
  const auto found = answer.headers.find("inference-header-content-length");
  return found == answer.headers.end() ? "" : answer.body.substr(std::stoul(found->second));
}
inline nlohmann::json JsonOf(const RestAnswer& answer) {
  const auto found = answer.headers.find("inference-header-content-length");
  const std::string text = found == answer.headers.end()
                               ? answer.body
                               : answer.body.substr(0, std::stoul(found->second));
  return nlohmann::json::parse(text, nullptr, false);
}
inline std::string ErrorOf(const RestAnswer& answer) {
  const nlohmann::json json = JsonOf(answer);
  return json.is_object() && json.contains("error") ? json["error"].get<std::string>()
                                                    : "no error: " + answer.body;
}

}  // namespace normd::testing

#endif  // NORMD_TESTS_SERVER_REST_REST_REQUESTS_H_
