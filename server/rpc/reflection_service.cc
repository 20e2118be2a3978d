#include "server/rpc/reflection_service.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/printable.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "grpc/reflection/v1alpha/reflection.pb.h"
#include "server/rpc/call_arrival.h"
#include "server/rpc/received_message.h"
#include "server/rpc/status.h"

namespace normd {
namespace {

namespace pb = google::protobuf;
using Response = Reflection::Response;

constexpr std::size_t kMaxShown = 64;

const pb::DescriptorPool& Pool() { return *pb::DescriptorPool::generated_pool(); }

void SetError(grpc::StatusCode code, const std::string& message, Response& response) {
  response.mutable_error_response()->set_error_code(code);
  response.mutable_error_response()->set_error_message(message);
}

void SetNotFound(absl::string_view what, absl::string_view name, Response& response) {
  SetError(grpc::StatusCode::NOT_FOUND,
           absl::StrCat(what, ": \"", Printable(name, kMaxShown), "\" is not known here"),
           response);
}

// Adds a file with all its imports, so that its reader need not ask again.
void AddFile(const pb::FileDescriptor& file, std::set<const pb::FileDescriptor*>& added,
             Response& response) {
  if (!added.insert(&file).second) return;
  google::protobuf::FileDescriptorProto proto;
  file.CopyTo(&proto);
  response.mutable_file_descriptor_response()->add_file_descriptor_proto(proto.SerializeAsString());
  for (int i = 0; i < file.dependency_count(); ++i) AddFile(*file.dependency(i), added, response);
}

void SetFile(const pb::FileDescriptor* file, absl::string_view what, absl::string_view name,
             Response& response) {
  if (file == nullptr) return SetNotFound(what, name, response);
  std::set<const pb::FileDescriptor*> added;
  AddFile(*file, added, response);
}

void SetExtensionNumbers(const std::string& type, Response& response) {
  const pb::Descriptor* const message = Pool().FindMessageTypeByName(type);
  if (message == nullptr) return SetNotFound("type", type, response);
  auto& numbers = *response.mutable_all_extension_numbers_response();
  numbers.set_base_type_name(type);
  std::vector<const pb::FieldDescriptor*> extensions;
  Pool().FindAllExtensions(message, &extensions);
  for (const pb::FieldDescriptor* extension : extensions) {
    numbers.add_extension_number(extension->number());
  }
}

void SetExtension(const grpc::reflection::v1::ExtensionRequest& wanted, Response& response) {
  const pb::Descriptor* const message = Pool().FindMessageTypeByName(wanted.containing_type());
  const pb::FieldDescriptor* const extension =
      message == nullptr ? nullptr
                         : Pool().FindExtensionByNumber(message, wanted.extension_number());
  SetFile(extension == nullptr ? nullptr : extension->file(), "extension",
          absl::StrCat(wanted.containing_type(), " ", wanted.extension_number()), response);
}

}  // namespace

// Deletes itself in OnDone. One operation is in progress at any time before Finish: gRPC fails it
// when the client leaves.
class Reflection::Call final : public Reactor {
 public:
  Call(const Reflection& reflection, grpc::CallbackServerContext& context)
      : reflection_(reflection),
        context_(context),
        caller_(CallerOf(context, reflection.environment_.callers)) {}

  void Begin(const absl::Status& allowed) {
    if (!allowed.ok()) return End(allowed);
    StartRead(&request_);
  }
  void OnReadDone(bool ok) override {
    if (!ok) return End(absl::OkStatus());
    if (caller_ != nullptr) caller_->delivered.Add(static_cast<std::int64_t>(request_.Length()));
    Request request;
    if (absl::Status status = ParseControl(context_, request_, request); !status.ok()) {
      return End(status);
    }
    bool own_buffer = false;
    grpc::SerializationTraits<Response>::Serialize(reflection_.Answer(request), &response_,
                                                   &own_buffer);
    StartWrite(&response_);
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return End(absl::CancelledError("the client left while it was answered"));
    StartRead(&request_);
  }
  void OnDone() override { delete this; }

 private:
  void End(const absl::Status& status) { Finish(ToGrpc(status, Duration(0), context_)); }

  const Reflection& reflection_;
  grpc::CallbackServerContext& context_;
  const std::shared_ptr<Caller> caller_;  // shared: as any call's.
  grpc::ByteBuffer request_;
  grpc::ByteBuffer response_;
};

Reflection::Reflection(AcceptEnvironment& environment, std::vector<std::string> services)
    : environment_(environment), services_(std::move(services)) {
  // By their files, which are linked, and so described, only if something refers to them.
  for (const pb::Descriptor* const message :
       {Request::descriptor(), grpc::reflection::v1alpha::ServerReflectionRequest::descriptor()}) {
    services_.push_back(message->file()->service(0)->full_name());
  }
  std::sort(services_.begin(), services_.end());
}

auto Reflection::Begin(grpc::CallbackServerContext& context) const -> Reactor* {
  auto* const call = new Call(*this, context);
  call->Begin(CheckPlainCall(context, environment_, {"ServerReflectionInfo", Right::kObserve, ""}));
  return call;
}

Response Reflection::Answer(const Request& request) const {
  Response response;
  response.set_valid_host(request.host());
  *response.mutable_original_request() = request;
  switch (request.message_request_case()) {
    case Request::kFileByFilename:
      SetFile(Pool().FindFileByName(request.file_by_filename()), "file", request.file_by_filename(),
              response);
      break;
    case Request::kFileContainingSymbol:
      SetFile(Pool().FindFileContainingSymbol(request.file_containing_symbol()), "symbol",
              request.file_containing_symbol(), response);
      break;
    case Request::kFileContainingExtension:
      SetExtension(request.file_containing_extension(), response);
      break;
    case Request::kAllExtensionNumbersOfType:
      SetExtensionNumbers(request.all_extension_numbers_of_type(), response);
      break;
    case Request::kListServices:
      for (const std::string& name : services_) {
        response.mutable_list_services_response()->add_service()->set_name(name);
      }
      break;
    case Request::MESSAGE_REQUEST_NOT_SET:
      SetError(grpc::StatusCode::INVALID_ARGUMENT, "message_request: none, wanted one", response);
      break;
  }
  return response;
}

}  // namespace normd
