// inference.GRPCInferenceService, the Open Inference Protocol with Triton's extensions, over gRPC's
// callback API.

#ifndef NORMD_SERVER_RPC_INFER_SERVICE_H_
#define NORMD_SERVER_RPC_INFER_SERVICE_H_

#include "grpcpp/grpcpp.h"
#include "inference/grpc_service.grpc.pb.h"
#include "server/infer/infer_methods.h"
#include "server/rpc/call_environment.h"
#include "server/rpc/infer_messages.h"
#include "server/rpc/kept_list.h"
#include "server/rpc/norm_service.h"
#include "server/rpc/readiness.h"
#include "server/rpc/served_service.h"

namespace normd {

// `Base` with each of these methods raw; see NormServiceBase.
template <template <typename> class Method, template <typename> class... More>
struct RawMethods {
  using Service = Method<typename RawMethods<More...>::Service>;
};
template <template <typename> class Method>
struct RawMethods<Method> {
  using Service = Method<inference::GRPCInferenceService::Service>;
};

using Inference = inference::GRPCInferenceService;
using InferServiceBase = RawMethods<
    Inference::WithRawCallbackMethod_ServerLive, Inference::WithRawCallbackMethod_ServerReady,
    Inference::WithRawCallbackMethod_ModelReady, Inference::WithRawCallbackMethod_ServerMetadata,
    Inference::WithRawCallbackMethod_ModelMetadata, Inference::WithRawCallbackMethod_ModelInfer,
    Inference::WithRawCallbackMethod_ModelStreamInfer, Inference::WithRawCallbackMethod_ModelConfig,
    Inference::WithRawCallbackMethod_ModelStatistics,
    Inference::WithRawCallbackMethod_RepositoryIndex,
    Inference::WithRawCallbackMethod_RepositoryModelLoad,
    Inference::WithRawCallbackMethod_RepositoryModelUnload,
    Inference::WithRawCallbackMethod_SystemSharedMemoryStatus,
    Inference::WithRawCallbackMethod_SystemSharedMemoryRegister,
    Inference::WithRawCallbackMethod_SystemSharedMemoryUnregister,
    Inference::WithRawCallbackMethod_CudaSharedMemoryStatus,
    Inference::WithRawCallbackMethod_CudaSharedMemoryRegister,
    Inference::WithRawCallbackMethod_CudaSharedMemoryUnregister,
    Inference::WithRawCallbackMethod_TraceSetting,
    Inference::WithRawCallbackMethod_LogSettings>::Service;

// Like NormService. docs/open_inference_protocol.md says what each method does.
class InferService final : public InferServiceBase {
 public:
  // `environment` and `readiness` outlive the service; the service outlives its calls.
  InferService(CallEnvironment& environment, const Readiness& readiness, const ServerInfo& info);

  ServedService served() { return {this, inference::GRPCInferenceService::service_full_name()}; }

  using Context = grpc::CallbackServerContext;
  using Bytes = grpc::ByteBuffer;
  using Unary = grpc::ServerUnaryReactor;

  Unary* ServerLive(Context* context, const Bytes* request, Bytes* response) override;
  Unary* ServerReady(Context* context, const Bytes* request, Bytes* response) override;
  Unary* ModelReady(Context* context, const Bytes* request, Bytes* response) override;
  Unary* ServerMetadata(Context* context, const Bytes* request, Bytes* response) override;
  Unary* ModelMetadata(Context* context, const Bytes* request, Bytes* response) override;
  Unary* ModelInfer(Context* context, const Bytes* request, Bytes* response) override;
  grpc::ServerBidiReactor<Bytes, Bytes>* ModelStreamInfer(Context* context) override;
  Unary* ModelConfig(Context* context, const Bytes* request, Bytes* response) override;
  Unary* ModelStatistics(Context* context, const Bytes* request, Bytes* response) override;
  Unary* RepositoryIndex(Context* context, const Bytes* request, Bytes* response) override;
  Unary* RepositoryModelLoad(Context* context, const Bytes* request, Bytes* response) override;
  Unary* RepositoryModelUnload(Context* context, const Bytes* request, Bytes* response) override;
  Unary* SystemSharedMemoryStatus(Context* context, const Bytes* request, Bytes* response) override;
  Unary* SystemSharedMemoryRegister(Context* context, const Bytes* request,
                                    Bytes* response) override;
  Unary* SystemSharedMemoryUnregister(Context* context, const Bytes* request,
                                      Bytes* response) override;
  Unary* CudaSharedMemoryStatus(Context* context, const Bytes* request, Bytes* response) override;
  Unary* CudaSharedMemoryRegister(Context* context, const Bytes* request, Bytes* response) override;
  Unary* CudaSharedMemoryUnregister(Context* context, const Bytes* request,
                                    Bytes* response) override;
  Unary* TraceSetting(Context* context, const Bytes* request, Bytes* response) override;
  Unary* LogSettings(Context* context, const Bytes* request, Bytes* response) override;

 private:
  // Begins a control call, as BeginControl.
  template <typename Request, typename Response>
  Unary* Control(Context* context, const Bytes* request, Bytes* response,
                 const InferMethod<Request, Response>& method);

  CallEnvironment& environment_;
  const InferMethods methods_;
  const InferCodec codec_;
  KeptList<inference::ModelStatisticsResponse> statistics_;  // The statistics of all models.
  KeptList<inference::RepositoryIndexResponse> index_;
  KeptList<inference::RepositoryIndexResponse> ready_index_;
};

}  // namespace normd

#endif  // NORMD_SERVER_RPC_INFER_SERVICE_H_
