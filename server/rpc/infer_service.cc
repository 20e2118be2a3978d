#include "server/rpc/infer_service.h"

#include <optional>

#include "inference/grpc_service.grpc.pb.h"
#include "server/infer/infer_models.h"
#include "server/rpc/driven_stream.h"
#include "server/rpc/infer_stream.h"
#include "server/rpc/normalize_call.h"

namespace normd {

InferService::InferService(CallEnvironment& environment, const Readiness& readiness,
                           const ServerInfo& info)
    : RawService(inference::GRPCInferenceService::service_full_name()),
      environment_(environment),
      methods_(
          environment.accept, [&readiness] { return readiness.ready(); }, info.version) {
  AddUnary("ModelInfer", [this](Context* context, const Bytes* request, Bytes* response) {
    return NormalizeCall::Begin(environment_, *context, Method::kModelInfer,
                                {*request, *response, codec_});
  });
  AddStream("ModelStreamInfer",
            [this](Context* context) { return BeginStream<InferStream>(environment_, *context); });
  AddInfer("ServerLive", infer::kServerLive);
  AddInfer("ServerReady", infer::kServerReady);
  AddInfer("ModelReady", infer::kModelReady);
  AddInfer("ServerMetadata", infer::kServerMetadata);
  AddInfer("ModelMetadata", infer::kModelMetadata);
  AddInfer("ModelConfig", infer::kModelConfig);
  AddInfer("RepositoryModelLoad", infer::kRepositoryModelLoad);
  AddInfer("RepositoryModelUnload", infer::kRepositoryModelUnload);
  AddInfer("SystemSharedMemoryStatus", infer::kSystemSharedMemoryStatus);
  AddInfer("SystemSharedMemoryRegister", infer::kSystemSharedMemoryRegister);
  AddInfer("SystemSharedMemoryUnregister", infer::kSystemSharedMemoryUnregister);
  AddInfer("CudaSharedMemoryStatus", infer::kCudaSharedMemoryStatus);
  AddInfer("CudaSharedMemoryRegister", infer::kCudaSharedMemoryRegister);
  AddInfer("CudaSharedMemoryUnregister", infer::kCudaSharedMemoryUnregister);
  AddInfer("TraceSetting", infer::kTraceSetting);
  AddInfer("LogSettings", infer::kLogSettings);
  AddControl(environment,
             {"ModelStatistics", infer::kModelStatistics.method, infer::kModelStatistics.place},
             &InferService::ModelStatistics);
  AddControl(environment,
             {"RepositoryIndex", infer::kRepositoryIndex.method, infer::kRepositoryIndex.place},
             &InferService::RepositoryIndex);
}

template <typename Request, typename Response>
void InferService::AddInfer(const char* name, const InferMethod<Request, Response>& method) {
  AddControl<Request, Response>(
      environment_, {name, method.method, method.place},
      [this, body = method.body](const Request& wanted, Response& answer, ControlCall& call) {
        return (methods_.*body)(wanted, answer, call);
      });
}

absl::Status InferService::ModelStatistics(const inference::ModelStatisticsRequest& wanted,
                                           grpc::ByteBuffer& answer, ControlCall& call) {
  if (wanted.name().empty()) {
    const auto fill = [this](auto& list) { AddStatistics(environment_.accept.registry, list); };
    return statistics_.Get(std::nullopt, call.arrival(), environment_.accept.clock, fill, answer);
  }
  inference::ModelStatisticsResponse one;
  absl::Status status = methods_.ModelStatistics(wanted, one, call);
  return status.ok() ? Serialize(one, answer) : status;
}

absl::Status InferService::RepositoryIndex(const inference::RepositoryIndexRequest& wanted,
                                           grpc::ByteBuffer& answer, ControlCall& call) {
  absl::Status status = InferMethods::CheckIndex(wanted);
  if (!status.ok()) return status;
  const ModelRegistry& registry = environment_.accept.registry;
  const auto fill = [&](auto& list) { AddIndex(registry, wanted.ready(), list); };
  return (wanted.ready() ? ready_index_ : index_)
      .Get(registry.changes(), call.arrival(), environment_.accept.clock, fill, answer);
}

}  // namespace normd
