// The messages of control calls: parsed from what came, serialized into what goes.

#ifndef NORMD_SERVER_RPC_CONTROL_MESSAGES_H_
#define NORMD_SERVER_RPC_CONTROL_MESSAGES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "server/rpc/control_call.h"

namespace normd {

// A control request is a name and a number.
inline constexpr std::size_t kMaxControlBytes = 4096;

// What a service's handler returns for a control call: parses the request, runs
// `body(request, response, about)`, serializes the response. The handler's arguments outlive the
// call; `thread` as ControlCall::Start's.
template <typename Request, typename Response, typename Body>
grpc::ServerUnaryReactor* BeginControl(CallEnvironment& environment,
                                       grpc::CallbackServerContext& context, Method method,
                                       const grpc::ByteBuffer& request, grpc::ByteBuffer& response,
                                       Body body, TaskThread* thread = nullptr) {
  auto* call = NewCall<ControlCall>(environment, context, method);
  if (call == nullptr) return OutOfMemory(context);
  auto run = [&request, &response,
              body = std::move(body)](std::shared_ptr<const Model>& about) -> absl::Status {
    if (request.Length() > kMaxControlBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("request: ", request.Length(), " bytes, wanted at most ", kMaxControlBytes));
    }
    grpc::ByteBuffer bytes(request);
    Request parsed;
    if (!grpc::SerializationTraits<Request>::Deserialize(&bytes, &parsed).ok()) {
      return absl::InvalidArgumentError("request: malformed protobuf");
    }
    Response answer;
    absl::Status status = body(parsed, answer, about);
    if (!status.ok()) return status;
    bool own_buffer = false;
    if (!grpc::SerializationTraits<Response>::Serialize(answer, &response, &own_buffer).ok()) {
      return absl::InternalError("the response could not be serialized");
    }
    return absl::OkStatus();
  };
  call->Start(static_cast<std::int64_t>(request.Length()), std::move(run), thread);
  return call;
}

}  // namespace normd

#endif  // NORMD_SERVER_RPC_CONTROL_MESSAGES_H_
