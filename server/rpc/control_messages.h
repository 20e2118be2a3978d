// The messages of control calls: parses requests, serializes responses.

#ifndef NORMD_SERVER_RPC_CONTROL_MESSAGES_H_
#define NORMD_SERVER_RPC_CONTROL_MESSAGES_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "grpcpp/impl/codegen/proto_utils.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "server/accept/control_call.h"
#include "server/accept/model_name_in.h"
#include "server/rpc/received_message.h"
#include "server/rpc/unary_control_call.h"

namespace normd {

template <typename Message>
absl::Status Serialize(const Message& message, grpc::ByteBuffer& bytes) {
  bool own_buffer = false;
  if (grpc::SerializationTraits<Message>::Serialize(message, &bytes, &own_buffer).ok()) {
    return absl::OkStatus();
  }
  return absl::InternalError("the response could not be serialized");
}

// The result of a service's handler for a control call: parses the request, runs `body(request,
// response, call)`, and serializes the response, unless its type is grpc::ByteBuffer. The handler's
// arguments outlive the call; `place` as in ControlCall::Start.
template <typename Request, typename Response, typename Body>
grpc::ServerUnaryReactor* BeginControl(CallEnvironment& environment,
                                       grpc::CallbackServerContext& context, Method method,
                                       const grpc::ByteBuffer& request, grpc::ByteBuffer& response,
                                       Body body, ControlPlace place = ControlPlace::kHere) {
  auto* call = NewCall<UnaryControlCall>(environment, context, method);
  if (call == nullptr) return OutOfMemory(context);
  auto run = [call, &context, &request, &response, body = std::move(body)]() -> absl::Status {
    Request parsed;
    if (absl::Status status = ParseControl(context, request, parsed); !status.ok()) return status;
    if (const auto name = ModelNameIn(parsed); name.has_value()) {
      if (absl::Status allowed = call->CheckModel(*name); !allowed.ok()) return allowed;
    }
    Response answer;
    absl::Status status = body(parsed, answer, static_cast<ControlCall&>(*call));
    if (!status.ok()) return status;
    if constexpr (std::is_same_v<Response, grpc::ByteBuffer>) {
      response.Swap(&answer);
    } else if (status = Serialize(answer, response); !status.ok()) {
      return status;
    }
    call->set_response_bytes(response.Length());
    return absl::OkStatus();
  };
  call->Start(static_cast<std::int64_t>(request.Length()), std::move(run), place);
  return call;
}

}  // namespace normd

#endif  // NORMD_SERVER_RPC_CONTROL_MESSAGES_H_
