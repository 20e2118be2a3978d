#include "tests/server/rpc/access_calls.h"

#include <google/protobuf/dynamic_message.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <chrono>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "grpc/reflection/v1alpha/reflection.grpc.pb.h"
#include "tests/server/rpc/raw_client.h"
#include "tests/server/rpc/test_server.h"

namespace normd::testing {

using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using google::protobuf::MethodDescriptor;
using google::protobuf::ServiceDescriptor;

namespace {

// One call of any kind with one message, to its end.
class OneCall {
 public:
  OneCall(const std::shared_ptr<grpc::Channel>& channel,
          const std::function<void(grpc::ClientContext&)>& configure)
      : stub_(channel) {
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    configure(context_);
  }
  ~OneCall() {
    queue_.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue_.Next(&tag, &ok)) {
    }
  }

  Ending Make(const std::string& method, const std::string& wire) {
    Ending ending;
    const auto call = stub_.PrepareCall(&context_, method, &queue_);
    call->StartCall(Tag());
    if (Done()) {
      const grpc::Slice slice(wire);
      call->Write(grpc::ByteBuffer(&slice, 1), Tag());
      if (Done()) {
        call->WritesDone(Tag());
        Done();
      }
      grpc::ByteBuffer answer;
      for (;;) {
        call->Read(&answer, Tag());
        if (!Done()) break;
        ++ending.messages;
        ending.last_message = BytesOf(answer);
        if (absl::EndsWith(method, "/Watch")) context_.TryCancel();  // It would never end.
      }
    }
    call->Finish(&ending.status, Tag());
    Done();
    ending.pushback = Pushback(context_);
    return ending;
  }

 private:
  static void* Tag() { return nullptr; }
  bool Done() {
    void* tag = nullptr;
    bool ok = false;
    return queue_.Next(&tag, &ok) && ok;
  }

  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
};

}  // namespace

const std::map<std::string, AccessRule>& AccessRules() {
  static const auto* const rules = new std::map<std::string, AccessRule>{
      {"normd.v1.NormService.Normalize", {Right::kInfer, true}},
      {"normd.v1.NormService.NormalizeStream", {Right::kInfer, true}},
      {"normd.v1.NormService.ListModels", {Right::kObserve}},
      {"normd.v1.NormService.GetModel", {Right::kDescribe, true}},
      {"normd.v1.NormService.LoadModel", {Right::kAdmin, true}},
      {"normd.v1.NormService.UnloadModel", {Right::kAdmin, true}},
      {"normd.v1.NormService.GetServerInfo", {Right::kDescribe}},
      {"normd.v1.NormService.ListSharedMemory", {Right::kObserve}},
      {"inference.GRPCInferenceService.ServerLive", {Right::kHealth}},
      {"inference.GRPCInferenceService.ServerReady", {Right::kHealth}},
      {"inference.GRPCInferenceService.ModelReady", {Right::kDescribe, true}},
      {"inference.GRPCInferenceService.ServerMetadata", {Right::kDescribe}},
      {"inference.GRPCInferenceService.ModelMetadata", {Right::kDescribe, true}},
      {"inference.GRPCInferenceService.ModelInfer", {Right::kInfer, true}},
      {"inference.GRPCInferenceService.ModelStreamInfer", {Right::kInfer}},
      {"inference.GRPCInferenceService.ModelConfig", {Right::kDescribe, true}},
      {"inference.GRPCInferenceService.ModelStatistics", {Right::kObserve}},
      {"inference.GRPCInferenceService.RepositoryIndex", {Right::kObserve}},
      {"inference.GRPCInferenceService.RepositoryModelLoad", {Right::kAdmin, true}},
      {"inference.GRPCInferenceService.RepositoryModelUnload", {Right::kAdmin, true}},
      {"inference.GRPCInferenceService.SystemSharedMemoryStatus", {Right::kAdmin}},
      {"inference.GRPCInferenceService.SystemSharedMemoryRegister", {Right::kAdmin}},
      {"inference.GRPCInferenceService.SystemSharedMemoryUnregister", {Right::kAdmin}},
      {"inference.GRPCInferenceService.CudaSharedMemoryStatus", {Right::kAdmin}},
      {"inference.GRPCInferenceService.CudaSharedMemoryRegister", {Right::kAdmin}},
      {"inference.GRPCInferenceService.CudaSharedMemoryUnregister", {Right::kAdmin}},
      {"inference.GRPCInferenceService.TraceSetting", {Right::kObserve}},
      {"inference.GRPCInferenceService.LogSettings", {Right::kObserve}},
      {"grpc.health.v1.Health.Check", {Right::kHealth}},
      {"grpc.health.v1.Health.Watch", {Right::kHealth}},
      {"grpc.reflection.v1.ServerReflection.ServerReflectionInfo", {Right::kObserve}},
      {"grpc.reflection.v1alpha.ServerReflection.ServerReflectionInfo", {Right::kObserve}},
  };
  return *rules;
}

bool MayCall(char identity, const AccessRule& rule) {
  switch (rule.right) {
    case Right::kHealth: return true;
    case Right::kDescribe:
      return identity == 'u' || identity == 'v' || (identity == 'w' && !rule.names_model);
    case Right::kInfer: return identity == 'u' || (identity == 'w' && !rule.names_model);
    case Right::kObserve: return identity == 'v';
    case Right::kAdmin: return identity == 'a';
  }
  return false;
}

Ending MakeCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& authorization,
                const std::string& method, const std::string& wire) {
  const auto authorize = [&](grpc::ClientContext& context) {
    if (!authorization.empty()) context.AddMetadata("authorization", authorization);
  };
  return MakeCall(channel, authorize, method, wire);
}

Ending MakeCall(const std::shared_ptr<grpc::Channel>& channel,
                const std::function<void(grpc::ClientContext&)>& configure,
                const std::string& method, const std::string& wire) {
  return OneCall(channel, configure).Make(method, wire);
}

std::string WireFor(const MethodDescriptor& method, const std::string& model) {
  google::protobuf::DynamicMessageFactory factory;
  const std::unique_ptr<google::protobuf::Message> request(
      factory.GetPrototype(method.input_type())->New());
  google::protobuf::Message* target = request.get();
  if (const FieldDescriptor* header = method.input_type()->FindFieldByName("header")) {
    target = request->GetReflection()->MutableMessage(request.get(), header);
  }
  for (const char* name : {"model", "model_name", "name"}) {
    const FieldDescriptor* const field = target->GetDescriptor()->FindFieldByName(name);
    if (field == nullptr || field->cpp_type() != FieldDescriptor::CPPTYPE_STRING) continue;
    target->GetReflection()->SetString(target, field, model);
    break;
  }
  // A message without a tensor cannot be read at all.
  const FieldDescriptor* const inputs = target->GetDescriptor()->FindFieldByName("inputs");
  if (inputs != nullptr) target->GetReflection()->AddMessage(target, inputs);
  return request->SerializeAsString();
}

std::string PathOf(const MethodDescriptor& method) {
  return absl::StrCat("/", method.service()->full_name(), "/", method.name());
}

std::vector<const ServiceDescriptor*> ServicesOf(const std::shared_ptr<grpc::Channel>& channel,
                                                 const std::string& authorization) {
  using Reflection = grpc::reflection::v1alpha::ServerReflection;
  grpc::ClientContext context;
  if (!authorization.empty()) context.AddMetadata("authorization", authorization);
  const auto stream = Reflection::NewStub(channel)->ServerReflectionInfo(&context);
  grpc::reflection::v1alpha::ServerReflectionRequest request;
  request.set_list_services("");
  grpc::reflection::v1alpha::ServerReflectionResponse response;
  std::vector<const ServiceDescriptor*> services;
  if (!stream->Write(request) || !stream->Read(&response)) return services;
  for (const auto& service : response.list_services_response().service()) {
    services.push_back(DescriptorPool::generated_pool()->FindServiceByName(service.name()));
    EXPECT_NE(services.back(), nullptr) << service.name();
  }
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
  return services;
}

}  // namespace normd::testing
