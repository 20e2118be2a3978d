// normd.v1.NormService over gRPC's callback API.

#ifndef NORMD_SERVER_RPC_NORM_SERVICE_H_
#define NORMD_SERVER_RPC_NORM_SERVICE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "grpcpp/grpcpp.h"
#include "normd/v1/norm_service.grpc.pb.h"
#include "server/rpc/call_environment.h"
#include "server/rpc/kept_list.h"
#include "server/rpc/norm_messages.h"
#include "server/rpc/readiness.h"
#include "server/rpc/served_service.h"
#include "server/rpc/server_info.h"

namespace normd {

// Every method takes its messages raw: those with tensors so that they are decoded without copies
// (see wire/), the others so that a malformed message gets the same error as any other bad request,
// while gRPC's own parsing would answer UNIMPLEMENTED.
using NormServiceBase = v1::NormService::WithRawCallbackMethod_Normalize<
    v1::NormService::WithRawCallbackMethod_NormalizeStream<
        v1::NormService::WithRawCallbackMethod_ListModels<
            v1::NormService::WithRawCallbackMethod_GetModel<
                v1::NormService::WithRawCallbackMethod_LoadModel<
                    v1::NormService::WithRawCallbackMethod_UnloadModel<
                        v1::NormService::WithRawCallbackMethod_GetServerInfo<
                            v1::NormService::WithRawCallbackMethod_ListSharedMemory<
                                v1::NormService::Service>>>>>>>>;

// Thread-safe. No handler blocks: loads and unloads run on CallEnvironment::loads, lists on
// CallEnvironment::lists, and all other calls end at once or in a completion. Every call passes the
// same admission, is counted as active, and is recorded with its code and duration.
class NormService final : public NormServiceBase {
 public:
  // `environment` and `readiness` outlive the service; the service outlives its calls.
  NormService(CallEnvironment& environment, const Readiness& readiness, ServerInfo info);

  ServedService served() { return {this, v1::NormService::service_full_name()}; }

  grpc::ServerUnaryReactor* Normalize(grpc::CallbackServerContext* context,
                                      const grpc::ByteBuffer* request,
                                      grpc::ByteBuffer* response) override;
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* NormalizeStream(
      grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* LoadModel(grpc::CallbackServerContext* context,
                                      const grpc::ByteBuffer* request,
                                      grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* UnloadModel(grpc::CallbackServerContext* context,
                                        const grpc::ByteBuffer* request,
                                        grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ListSharedMemory(grpc::CallbackServerContext* context,
                                             const grpc::ByteBuffer* request,
                                             grpc::ByteBuffer* response) override;

 private:
  CallEnvironment& environment_;
  const Readiness& readiness_;
  const ServerInfo info_;
  const TimePoint started_;
  const NormalizeCodec codec_;
  KeptList<v1::ListModelsResponse> models_;
};

}  // namespace normd

#endif  // NORMD_SERVER_RPC_NORM_SERVICE_H_
