#include "server/rest/control_json.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "inference/grpc_service.pb.h"
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

}  // namespace

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

}  // namespace normd
