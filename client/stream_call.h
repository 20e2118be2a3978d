// One NormalizeStream call of tensors in memory, without a thread of its own: for programs with
// many calls in flight.

#ifndef NORMD_CLIENT_STREAM_CALL_H_
#define NORMD_CLIENT_STREAM_CALL_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "client/caller.h"
#include "client/stream_request.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/status.h"

namespace normd::client {

struct StreamedTensor {
  StreamRequest request;  // `on_accepted` and `on_progress` are not called.
  // In the stream's order (StreamOrder); refused unless types and shapes give the same number of
  // bytes.
  absl::Span<const std::byte> bytes;
  // Keeps the bytes alive, if necessary beyond the call's end; see NamedTensor::owner.
  std::shared_ptr<const void> owner;
};

// Both run on gRPC's threads, one at a time, and must not block.
struct StreamHandlers {
  // The result's next bytes, in order and of any number. May be empty.
  absl::AnyInvocable<void(absl::Span<const std::byte>)> on_bytes;
  // Runs exactly once, last: with the error of a response that breaks the protocol, else OK; the
  // call's status; and the result.
  absl::AnyInvocable<void(const absl::Status&, const grpc::Status&, StreamResult) &&> done;
};

// Starts the call; does not block. Client::NormalizeStreamAsync uses it.
std::shared_ptr<PendingCall> StartStream(grpc::GenericStub& stub, const std::string& method,
                                         std::shared_ptr<const StreamedTensor> tensor,
                                         StreamHandlers handlers);

}  // namespace normd::client

#endif  // NORMD_CLIENT_STREAM_CALL_H_
