#include "server/rpc/infer_service.h"

#include <memory>
#include <new>
#include <optional>

#include "server/infer/infer_models.h"
#include "server/rpc/control_messages.h"
#include "server/rpc/infer_stream.h"
#include "server/rpc/normalize_call.h"

namespace normd {
InferService::InferService(CallEnvironment& environment, const Readiness& readiness,
                           const ServerInfo& info)
    : environment_(environment),
      methods_(
          environment.accept, [&readiness] { return readiness.ready(); }, info.version) {}

template <typename Request, typename Response>
InferService::Unary* InferService::Control(Context* context, const Bytes* request, Bytes* response,
                                           const InferMethod<Request, Response>& method) {
  return BeginControl<Request, Response>(
      environment_, *context, method.method, *request, *response,
      [this, body = method.body](const Request& wanted, Response& answer, ControlCall& call) {
        return (methods_.*body)(wanted, answer, call);
      },
      method.place);
}

InferService::Unary* InferService::ModelInfer(Context* context, const Bytes* request,
                                              Bytes* response) {
  return NormalizeCall::Begin(environment_, *context, Method::kModelInfer,
                              {*request, *response, codec_});
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* InferService::ModelStreamInfer(
    Context* context) {
  try {
    const std::shared_ptr<InferStream> stream = InferStream::Create(environment_, *context);
    stream->Start();
    return stream.get();  // It keeps itself until gRPC is done with it.
  } catch (const std::bad_alloc&) {
    // As NormService::NormalizeStream.
    return nullptr;
  }
}

InferService::Unary* InferService::ServerLive(Context* context, const Bytes* request,
                                              Bytes* response) {
  return Control(context, request, response, infer::kServerLive);
}

InferService::Unary* InferService::ServerReady(Context* context, const Bytes* request,
                                               Bytes* response) {
  return Control(context, request, response, infer::kServerReady);
}

InferService::Unary* InferService::ModelReady(Context* context, const Bytes* request,
                                              Bytes* response) {
  return Control(context, request, response, infer::kModelReady);
}

InferService::Unary* InferService::ServerMetadata(Context* context, const Bytes* request,
                                                  Bytes* response) {
  return Control(context, request, response, infer::kServerMetadata);
}

InferService::Unary* InferService::ModelMetadata(Context* context, const Bytes* request,
                                                 Bytes* response) {
  return Control(context, request, response, infer::kModelMetadata);
}

InferService::Unary* InferService::ModelConfig(Context* context, const Bytes* request,
                                               Bytes* response) {
  return Control(context, request, response, infer::kModelConfig);
}

InferService::Unary* InferService::RepositoryModelLoad(Context* context, const Bytes* request,
                                                       Bytes* response) {
  return Control(context, request, response, infer::kRepositoryModelLoad);
}

InferService::Unary* InferService::RepositoryModelUnload(Context* context, const Bytes* request,
                                                         Bytes* response) {
  return Control(context, request, response, infer::kRepositoryModelUnload);
}

InferService::Unary* InferService::SystemSharedMemoryStatus(Context* context, const Bytes* request,
                                                            Bytes* response) {
  return Control(context, request, response, infer::kSystemSharedMemoryStatus);
}

InferService::Unary* InferService::SystemSharedMemoryRegister(Context* context,
                                                              const Bytes* request,
                                                              Bytes* response) {
  return Control(context, request, response, infer::kSystemSharedMemoryRegister);
}

InferService::Unary* InferService::SystemSharedMemoryUnregister(Context* context,
                                                                const Bytes* request,
                                                                Bytes* response) {
  return Control(context, request, response, infer::kSystemSharedMemoryUnregister);
}

InferService::Unary* InferService::CudaSharedMemoryStatus(Context* context, const Bytes* request,
                                                          Bytes* response) {
  return Control(context, request, response, infer::kCudaSharedMemoryStatus);
}

InferService::Unary* InferService::CudaSharedMemoryRegister(Context* context, const Bytes* request,
                                                            Bytes* response) {
  return Control(context, request, response, infer::kCudaSharedMemoryRegister);
}

InferService::Unary* InferService::CudaSharedMemoryUnregister(Context* context,
                                                              const Bytes* request,
                                                              Bytes* response) {
  return Control(context, request, response, infer::kCudaSharedMemoryUnregister);
}

InferService::Unary* InferService::TraceSetting(Context* context, const Bytes* request,
                                                Bytes* response) {
  return Control(context, request, response, infer::kTraceSetting);
}

InferService::Unary* InferService::LogSettings(Context* context, const Bytes* request,
                                               Bytes* response) {
  return Control(context, request, response, infer::kLogSettings);
}

InferService::Unary* InferService::ModelStatistics(Context* context, const Bytes* request,
                                                   Bytes* response) {
  return BeginControl<inference::ModelStatisticsRequest, Bytes>(
      environment_, *context, Method::kModelStatistics, *request, *response,
      [this](const inference::ModelStatisticsRequest& wanted, Bytes& answer, ControlCall& call) {
        if (wanted.name().empty()) {
          const auto fill = [this](auto& list) {
            AddStatistics(environment_.accept.registry, list);
          };
          return statistics_.Get(std::nullopt, call.arrival(), environment_.accept.clock, fill,
                                 answer);
        }
        inference::ModelStatisticsResponse one;
        absl::Status status = methods_.ModelStatistics(wanted, one, call);
        return status.ok() ? Serialize(one, answer) : status;
      },
      infer::kModelStatistics.place);
}

InferService::Unary* InferService::RepositoryIndex(Context* context, const Bytes* request,
                                                   Bytes* response) {
  return BeginControl<inference::RepositoryIndexRequest, Bytes>(
      environment_, *context, Method::kRepositoryIndex, *request, *response,
      [this](const inference::RepositoryIndexRequest& wanted, Bytes& answer,
             const ControlCall& call) {
        absl::Status status = InferMethods::CheckIndex(wanted);
        if (!status.ok()) return status;
        const ModelRegistry& registry = environment_.accept.registry;
        const auto fill = [&](auto& list) { AddIndex(registry, wanted.ready(), list); };
        return (wanted.ready() ? ready_index_ : index_)
            .Get(registry.changes(), call.arrival(), environment_.accept.clock, fill, answer);
      },
      infer::kRepositoryIndex.place);
}

}  // namespace normd
