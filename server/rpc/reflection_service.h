// grpc.reflection.v1alpha.ServerReflection. gRPC's own cannot ask who calls.

#ifndef NORMD_SERVER_RPC_REFLECTION_SERVICE_H_
#define NORMD_SERVER_RPC_REFLECTION_SERVICE_H_

#include <string>
#include <utility>
#include <vector>

#include "grpc/reflection/v1alpha/reflection.grpc.pb.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"
#include "server/accept/environment.h"

namespace normd {

// Tells of `services`, of itself, and of every file of this program's protocols. Thread-safe.
// Outlives every call.
class ReflectionService final
    : public grpc::reflection::v1alpha::ServerReflection::CallbackService {
 public:
  using Request = grpc::reflection::v1alpha::ServerReflectionRequest;
  using Response = grpc::reflection::v1alpha::ServerReflectionResponse;

  // `environment` outlives it.
  ReflectionService(AcceptEnvironment& environment, std::vector<std::string> services);

  // One question after the other is read and answered; a client that does not take the response is
  // not read.
  grpc::ServerBidiReactor<Request, Response>* ServerReflectionInfo(
      grpc::CallbackServerContext* context) override;

 private:
  class Call;
  Response Answer(const Request& request) const;

  AcceptEnvironment& environment_;
  std::vector<std::string> services_;
};

}  // namespace normd

#endif  // NORMD_SERVER_RPC_REFLECTION_SERVICE_H_
