// normd.v1.NormService over gRPC.

#ifndef NORMD_SERVER_RPC_NORM_SERVICE_H_
#define NORMD_SERVER_RPC_NORM_SERVICE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "grpcpp/support/byte_buffer.h"
#include "normd/v1/norm_service.pb.h"
#include "server/accept/control_call.h"
#include "server/rpc/call_environment.h"
#include "server/rpc/control_messages.h"
#include "server/rpc/norm_messages.h"
#include "server/rpc/raw_service.h"
#include "server/rpc/readiness.h"

namespace normd {

// What GetServerInfo tells beside what the accept path knows.
struct ServerInfo {
  std::string version;
  std::string cuda;
  std::string simd;
  std::vector<std::string> lanes;
  std::int64_t max_inflight_bytes = 0;
  std::string shared_memory_listen;
};

// Thread-safe. No handler blocks: loads and unloads run on CallEnvironment::loads, lists on
// CallEnvironment::lists, and all other calls end at once or in a completion. Every call passes the
// same admission, is counted as active, and is recorded with its code and duration.
class NormService final : public RawService {
 public:
  // `environment` and `readiness` outlive the service; the service outlives its calls.
  NormService(CallEnvironment& environment, const Readiness& readiness, ServerInfo info);

 private:
  template <typename Request, typename Response>
  using Body = absl::Status(const Request& wanted, Response& answer, ControlCall& call);
  Body<v1::ListModelsRequest, grpc::ByteBuffer> ListModels;
  Body<v1::GetModelRequest, v1::GetModelResponse> GetModel;
  Body<v1::LoadModelRequest, v1::LoadModelResponse> LoadModel;
  Body<v1::UnloadModelRequest, v1::UnloadModelResponse> UnloadModel;
  Body<v1::GetServerInfoRequest, v1::GetServerInfoResponse> GetServerInfo;
  Body<v1::ListSharedMemoryRequest, v1::ListSharedMemoryResponse> ListSharedMemory;

  CallEnvironment& environment_;
  const Readiness& readiness_;
  const ServerInfo info_;
  const TimePoint started_;
  const NormalizeCodec codec_;
  KeptList<v1::ListModelsResponse> models_;
};

}  // namespace normd

#endif  // NORMD_SERVER_RPC_NORM_SERVICE_H_
