// grpc.reflection.v1.ServerReflection, and v1alpha's. gRPC's own cannot check the caller's rights.

#ifndef NORMD_SERVER_RPC_REFLECTION_SERVICE_H_
#define NORMD_SERVER_RPC_REFLECTION_SERVICE_H_

#include <string>
#include <utility>
#include <vector>

#include "grpc/reflection/v1/reflection.pb.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "server/accept/environment.h"
#include "server/rpc/raw_service.h"

namespace normd {

// Describes `services`, itself, and every file of this program's protocols. Thread-safe. Outlives
// every call.
class Reflection {
 public:
  // The messages of both versions have the same bytes.
  using Request = grpc::reflection::v1::ServerReflectionRequest;
  using Response = grpc::reflection::v1::ServerReflectionResponse;
  using Reactor = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;

  // `environment` outlives it.
  Reflection(AcceptEnvironment& environment, std::vector<std::string> services);

  // A call of either version. Questions are read and answered one after another; a client that does
  // not take a response is not read.
  Reactor* Begin(grpc::CallbackServerContext& context) const;

 private:
  class Call;
  Response Answer(const Request& request) const;

  AcceptEnvironment& environment_;
  std::vector<std::string> services_;
};

// One version, by the name of its service.
class ReflectionService final : public RawService {
 public:
  // `reflection` outlives it.
  ReflectionService(const Reflection& reflection, std::string name) : RawService(std::move(name)) {
    AddStream("ServerReflectionInfo",
              [&reflection](Context* context) { return reflection.Begin(*context); });
  }
};

// Both, for registration.
struct ReflectionServices {
  ReflectionServices(AcceptEnvironment& environment, std::vector<std::string> services)
      : reflection(environment, std::move(services)) {}

  const Reflection reflection;
  ReflectionService v1{reflection, "grpc.reflection.v1.ServerReflection"};
  ReflectionService v1alpha{reflection, "grpc.reflection.v1alpha.ServerReflection"};
};

}  // namespace normd

#endif  // NORMD_SERVER_RPC_REFLECTION_SERVICE_H_
