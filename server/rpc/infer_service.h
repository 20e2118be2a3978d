// inference.GRPCInferenceService, the Open Inference Protocol with Triton's extensions, over gRPC.

#ifndef NORMD_SERVER_RPC_INFER_SERVICE_H_
#define NORMD_SERVER_RPC_INFER_SERVICE_H_

#include "absl/status/status.h"
#include "grpcpp/support/byte_buffer.h"
#include "inference/grpc_service.pb.h"
#include "server/accept/control_call.h"
#include "server/infer/infer_methods.h"
#include "server/rpc/call_environment.h"
#include "server/rpc/control_messages.h"
#include "server/rpc/infer_messages.h"
#include "server/rpc/norm_service.h"
#include "server/rpc/raw_service.h"
#include "server/rpc/readiness.h"

namespace normd {

// Like NormService. docs/open_inference_protocol.md says what each method does.
class InferService final : public RawService {
 public:
  // `environment` and `readiness` outlive the service; the service outlives its calls.
  InferService(CallEnvironment& environment, const Readiness& readiness, const ServerInfo& info);

 private:
  template <typename Request, typename Response>
  void AddInfer(const char* name, const InferMethod<Request, Response>& method);

  // Take the place of the bodies in InferMethods: their long lists are kept.
  absl::Status ModelStatistics(const inference::ModelStatisticsRequest& wanted,
                               grpc::ByteBuffer& answer, ControlCall& call);
  absl::Status RepositoryIndex(const inference::RepositoryIndexRequest& wanted,
                               grpc::ByteBuffer& answer, ControlCall& call);

  CallEnvironment& environment_;
  const InferMethods methods_;
  const InferCodec codec_;
  KeptList<inference::ModelStatisticsResponse> statistics_;  // The statistics of all models.
  KeptList<inference::RepositoryIndexResponse> index_;
  KeptList<inference::RepositoryIndexResponse> ready_index_;
};

}  // namespace normd

#endif  // NORMD_SERVER_RPC_INFER_SERVICE_H_
