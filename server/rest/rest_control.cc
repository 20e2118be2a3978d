// The control calls, whose JSON bodies differ from the protocol's messages in their frames.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "inference/grpc_service.pb.h"
#include "server/accept/message_limits.h"
#include "server/accept/model_name_in.h"
#include "server/rest/infer_call.h"
#include "server/rest/rest_call.h"
#include "wire/message_json.h"

namespace normd {
namespace {

using google::protobuf::Message;

// The field of a response, or of a request, that is the whole body; empty: the message is.
absl::string_view WholeField(RestMethod method) {
  switch (method) {
    case RestMethod::kModelConfig: return "config";
    case RestMethod::kRepositoryIndex: return "models";
    case RestMethod::kSystemStatus:
    case RestMethod::kCudaStatus: return "regions";
    case RestMethod::kTraceSetting:
    case RestMethod::kLogSettings: return "settings";
    default: return "";
  }
}

void SetText(Message& message, const char* field, const std::string& value) {
  const auto* const found = message.GetDescriptor()->FindFieldByName(field);
  if (found != nullptr) message.GetReflection()->SetString(&message, found, value);
}

// Fills the route's request from the body and the path's names, which win. InvalidArgument for a
// body that is neither empty nor an object whose fields have the types of the request's; unknown
// fields are ignored.
absl::Status ReadControl(const Route& route, absl::string_view body, Message& request) {
  if (!body.empty()) {
    const bool settings =
        route.method == RestMethod::kTraceSetting || route.method == RestMethod::kLogSettings;
    absl::Status status = ReadMessageJson(body, request, settings ? "settings" : "");
    if (!status.ok()) return status;
  }
  SetText(request, "name", route.region.empty() ? route.model : route.region);
  SetText(request, "model_name", route.model);
  SetText(request, "version", route.version);
  return absl::OkStatus();
}

// Writes the route's response: an object, a list for indexes and regions, or nothing for what only
// succeeds. A server or model that is not ready is 400.
void WriteControl(const Route& route, const Message& answer, RestReply& reply) {
  bool ready = true;
  if (const auto* server = dynamic_cast<const inference::ServerReadyResponse*>(&answer)) {
    ready = server->ready();
  } else if (const auto* model = dynamic_cast<const inference::ModelReadyResponse*>(&answer)) {
    ready = model->ready();
  }
  reply.status = ready ? 200 : 400;  // As published.
  // The published messages of what only succeeds are empty.
  if (answer.GetDescriptor()->field_count() == 0) return;
  reply.text = WriteMessageJson(answer, WholeField(route.method));
  if (route.method == RestMethod::kModelReady) {
    inference::ModelReadyRequest name;
    name.set_name(route.model);
    const std::string named = WriteMessageJson(name, "name");
    reply.text = absl::StrCat("{\"name\":", named, ",", reply.text.substr(1));
  }
}

// A call of one method of InferMethods.
template <typename Request, typename Response>
class RestControl final : public RestCall, public ControlCall {
 public:
  using Infer = InferMethod<Request, Response>;

  RestControl(RestEnvironment& environment, const RestArrival& arrival, const Infer& method,
              Reply reply)
      : RestCall(environment, arrival, method.method, std::move(reply)),
        ControlCall(environment.accept, environment.control, context_, method.method),
        method_(method) {}

  std::int64_t max_body_bytes() const override { return kMaxControlBytes; }

  void Run(RequestBody body) override {
    body_ = std::move(body);
    Start(
        static_cast<std::int64_t>(body_.size()), [this] { return Serve(); }, method_.place);
  }

  std::optional<absl::string_view> Metadata(absl::string_view name) const override {
    if (name != "normd-in-use" || !head_.in_use.has_value()) return std::nullopt;
    return *head_.in_use;
  }

  void Leave() override {
    RestCall::Leave();
    ControlCall::Leave();
  }
  void Record() override { context_.Record(); }

 private:
  absl::Status Serve() {
    Request request;
    const absl::string_view text(reinterpret_cast<const char*>(body_.bytes().data()), body_.size());
    absl::Status status = ReadControl(route_, text, request);
    if (!status.ok()) return status;
    if (const auto name = ModelNameIn(request); name.has_value()) {
      if (absl::Status allowed = CheckModel(*name); !allowed.ok()) return allowed;
    }
    Response answer;
    status = (environment_.methods.*method_.body)(request, answer, *this);
    if (!status.ok()) return status;
    WriteControl(route_, answer, reply_);
    set_response_bytes(reply_.text.size());
    return absl::OkStatus();
  }

  void OnEnd(const absl::Status& status, std::size_t /*response_bytes*/) override {
    if (status.ok()) CompressReply(head_.accept_encoding, reply_);
    Finish(status);
  }

  const Infer& method_;
  RequestBody body_;
};

template <typename Request, typename Response>
std::unique_ptr<RestCall> Make(RestEnvironment& environment, const RestArrival& arrival,
                               const InferMethod<Request, Response>& method,
                               RestCall::Reply reply) {
  return std::make_unique<RestControl<Request, Response>>(environment, arrival, method,
                                                          std::move(reply));
}

}  // namespace

std::unique_ptr<RestCall> MakeRestCall(RestEnvironment& environment, const RestArrival& arrival,
                                       RestCall::Reply reply) {
  const auto make = [&](const auto& method) {
    return Make(environment, arrival, method, std::move(reply));
  };
  switch (arrival.route.method) {
    case RestMethod::kServerLive: return make(infer::kServerLive);
    case RestMethod::kServerReady: return make(infer::kServerReady);
    case RestMethod::kServerMetadata: return make(infer::kServerMetadata);
    case RestMethod::kModelReady: return make(infer::kModelReady);
    case RestMethod::kModelMetadata: return make(infer::kModelMetadata);
    case RestMethod::kModelConfig: return make(infer::kModelConfig);
    case RestMethod::kModelStatistics: return make(infer::kModelStatistics);
    case RestMethod::kRepositoryIndex: return make(infer::kRepositoryIndex);
    case RestMethod::kLoad: return make(infer::kRepositoryModelLoad);
    case RestMethod::kUnload: return make(infer::kRepositoryModelUnload);
    case RestMethod::kSystemStatus: return make(infer::kSystemSharedMemoryStatus);
    case RestMethod::kSystemRegister: return make(infer::kSystemSharedMemoryRegister);
    case RestMethod::kSystemUnregister: return make(infer::kSystemSharedMemoryUnregister);
    case RestMethod::kCudaStatus: return make(infer::kCudaSharedMemoryStatus);
    case RestMethod::kCudaRegister: return make(infer::kCudaSharedMemoryRegister);
    case RestMethod::kCudaUnregister: return make(infer::kCudaSharedMemoryUnregister);
    case RestMethod::kTraceSetting: return make(infer::kTraceSetting);
    case RestMethod::kLogSettings: return make(infer::kLogSettings);
    case RestMethod::kInfer: break;
  }
  return std::make_unique<InferCall>(environment, arrival, std::move(reply));
}

}  // namespace normd
