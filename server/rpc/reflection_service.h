// grpc.reflection.v1.ServerReflection, and v1alpha's. gRPC's own cannot check the caller's rights.

#ifndef NORMD_SERVER_RPC_REFLECTION_SERVICE_H_
#define NORMD_SERVER_RPC_REFLECTION_SERVICE_H_

#include <string>
#include <utility>
#include <vector>

#include "grpc/reflection/v1/reflection.grpc.pb.h"
#include "grpc/reflection/v1alpha/reflection.grpc.pb.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "server/accept/environment.h"

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

// One version: `Base` is the generated service with a raw method.
template <typename Base>
class ReflectionService final : public Base {
 public:
  // `reflection` outlives it.
  explicit ReflectionService(const Reflection& reflection) : reflection_(reflection) {}

  Reflection::Reactor* ServerReflectionInfo(grpc::CallbackServerContext* context) override {
    return reflection_.Begin(*context);
  }

 private:
  const Reflection& reflection_;
};

namespace reflection_v1 = grpc::reflection::v1;
namespace reflection_v1alpha = grpc::reflection::v1alpha;
using ReflectionV1 =
    ReflectionService<reflection_v1::ServerReflection::WithRawCallbackMethod_ServerReflectionInfo<
        reflection_v1::ServerReflection::Service>>;
using ReflectionV1Alpha = ReflectionService<
    reflection_v1alpha::ServerReflection::WithRawCallbackMethod_ServerReflectionInfo<
        reflection_v1alpha::ServerReflection::Service>>;

// Both, for registration.
struct ReflectionServices {
  ReflectionServices(AcceptEnvironment& environment, std::vector<std::string> services)
      : reflection(environment, std::move(services)) {}

  const Reflection reflection;
  ReflectionV1 v1{reflection};
  ReflectionV1Alpha v1alpha{reflection};
};

}  // namespace normd

#endif  // NORMD_SERVER_RPC_REFLECTION_SERVICE_H_
