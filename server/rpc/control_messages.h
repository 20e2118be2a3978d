// The messages of control calls: parses requests, serializes responses.

#ifndef NORMD_SERVER_RPC_CONTROL_MESSAGES_H_
#define NORMD_SERVER_RPC_CONTROL_MESSAGES_H_

#include <cstdint>
#include <optional>
#include <type_traits>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "base/clock.h"
#include "grpcpp/impl/codegen/proto_utils.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "server/accept/control_call.h"
#include "server/accept/model_name_in.h"
#include "server/rpc/received_message.h"

namespace normd {

template <typename Message>
absl::Status Serialize(const Message& message, grpc::ByteBuffer& bytes) {
  bool own_buffer = false;
  if (grpc::SerializationTraits<Message>::Serialize(message, &bytes, &own_buffer).ok()) {
    return absl::OkStatus();
  }
  return absl::InternalError("the response could not be serialized");
}

// The body of a control call: parses the request, checks the caller's right to the model that it
// names, runs `body(request, response, call)`, and serializes the response, unless its type is
// grpc::ByteBuffer.
template <typename Request, typename Response, typename Body>
absl::Status ServeControl(ControlCall& call, grpc::CallbackServerContext& context,
                          const grpc::ByteBuffer& request, grpc::ByteBuffer& response,
                          const Body& body) {
  Request parsed;
  if (absl::Status status = ParseControl(context, request, parsed); !status.ok()) return status;
  if (const auto name = ModelNameIn(parsed); name.has_value()) {
    if (absl::Status allowed = call.CheckModel(*name); !allowed.ok()) return allowed;
  }
  Response answer;
  absl::Status status = body(parsed, answer, call);
  if (!status.ok()) return status;
  if constexpr (std::is_same_v<Response, grpc::ByteBuffer>) {
    response.Swap(&answer);
  } else if (status = Serialize(answer, response); !status.ok()) {
    return status;
  }
  call.set_response_bytes(response.Length());
  return absl::OkStatus();
}

// A long list, serialized once for all callers who may get the same one. Used by one thread, that
// of CallEnvironment::lists.
template <typename Message>
class KeptList {
 public:
  // Sets `bytes` to a list made from `state`, if there is one, or else to one begun after
  // `arrival`. Calls `fill` if none is kept.
  absl::Status Get(std::optional<std::uint64_t> state, TimePoint arrival, const Clock& clock,
                   absl::FunctionRef<void(Message&)> fill, grpc::ByteBuffer& bytes) {
    if ((!state.has_value() || state != state_) && arrival >= begun_) {
      const TimePoint now = clock.Now();
      Message message;
      fill(message);
      grpc::ByteBuffer fresh;
      if (absl::Status status = Serialize(message, fresh); !status.ok()) return status;
      bytes_ = fresh;
      state_ = state;
      begun_ = now;
    }
    bytes = bytes_;  // Shares the memory.
    return absl::OkStatus();
  }

 private:
  grpc::ByteBuffer bytes_;
  std::optional<std::uint64_t> state_;
  TimePoint begun_ = TimePoint::min();
};

}  // namespace normd

#endif  // NORMD_SERVER_RPC_CONTROL_MESSAGES_H_
