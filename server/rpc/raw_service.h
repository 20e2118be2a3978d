// A gRPC service whose methods take and give bytes.

#ifndef NORMD_SERVER_RPC_RAW_SERVICE_H_
#define NORMD_SERVER_RPC_RAW_SERVICE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "grpcpp/impl/service_type.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "server/rpc/call_environment.h"
#include "server/rpc/control_messages.h"
#include "server/rpc/unary_call.h"

namespace normd {

// A gRPC service that the server serves.
struct ServedService {
  grpc::Service* service = nullptr;  // Outlives the server.
  // "package.Service". Under this name health reports whether the server takes requests, and under
  // NAME/<model> whether a version of the model is loaded.
  std::string name;
};

// Takes every message raw: those with tensors so that they are decoded without copies (see wire/),
// the others so that a malformed message gets the same error as any other bad request, while gRPC's
// own parsing would answer UNIMPLEMENTED. A method that is not added is UNIMPLEMENTED. Outlives its
// calls.
class RawService : public grpc::Service {
 public:
  ServedService served() { return {this, name_}; }

 protected:
  using Context = grpc::CallbackServerContext;
  using Bytes = grpc::ByteBuffer;
  using Unary = grpc::ServerUnaryReactor;
  using Stream = grpc::ServerBidiReactor<Bytes, Bytes>;

  // The method's name in the protocol, and in rights and metrics; and where its body runs.
  struct ControlMethod {
    const char* name;
    Method method;
    ControlPlace place = ControlPlace::kHere;
  };

  // `name` is "package.Service".
  explicit RawService(std::string name) : name_(std::move(name)) {}

  // For the constructor. A handler is thread-safe and never blocks; the arguments live until the
  // reactor's OnDone.
  void AddUnary(absl::string_view method,
                std::function<Unary*(Context*, const Bytes*, Bytes*)> handler);
  void AddStream(absl::string_view method, std::function<Stream*(Context*)> handler);

  // Adds a control call with this body; see ServeControl. `environment` outlives the service.
  template <typename Request, typename Response, typename Body>
  void AddControl(CallEnvironment& environment, ControlMethod added, Body body) {
    AddUnary(added.name,
             [&environment, added, body](Context* context, const Bytes* request,
                                         Bytes* response) -> Unary* {
               auto* call = NewCall<UnaryControlCall>(environment, *context, added.method);
               if (call == nullptr) return OutOfMemory(*context);
               const auto serve = [call, context, request, response, body] {
                 return ServeControl<Request, Response>(*call, *context, *request, *response, body);
               };
               call->Start(static_cast<std::int64_t>(request->Length()), serve, added.place);
               return call;
             });
  }
  // The body is a member of the service.
  template <typename Service, typename Request, typename Response>
  void AddControl(CallEnvironment& environment, ControlMethod added,
                  absl::Status (Service::*body)(const Request&, Response&, ControlCall&)) {
    AddControl<Request, Response>(environment, added,
                                  [service = static_cast<Service*>(this), body](
                                      const Request& wanted, Response& answer, ControlCall& call) {
                                    return (service->*body)(wanted, answer, call);
                                  });
  }

 private:
  void Add(absl::string_view method, grpc::internal::RpcMethod::RpcType type,
           grpc::internal::MethodHandler* handler);

  const std::string name_;
  std::deque<std::string> paths_;  // The methods'. gRPC keeps pointers to them.
};

}  // namespace normd

#endif  // NORMD_SERVER_RPC_RAW_SERVICE_H_
