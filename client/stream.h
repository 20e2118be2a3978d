// One NormalizeStream call: tensors of any size, of which client and server hold a few chunks.

#ifndef NORMD_CLIENT_STREAM_H_
#define NORMD_CLIENT_STREAM_H_

#include <cstddef>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "client/stream_request.h"
#include "client/stream_transport.h"

namespace normd::client {

// Fills `out` with the stream's next bytes, in order. Runs on a thread of the call.
using StreamReader = absl::FunctionRef<absl::Status(absl::Span<std::byte> out)>;
// Takes the result's next bytes, in order and of any number. Runs on the caller's thread.
using StreamWriter = absl::FunctionRef<absl::Status(absl::Span<const std::byte> bytes)>;

// Runs the call over a transport that has just begun, up to its status; Client::NormalizeStream
// uses it. Errors: the reader's, the writer's, on_accepted's, or Internal for a response that
// breaks the protocol; the caller then cancels. OK: the call has ended, and its status says how;
// `result` is complete if it succeeded.
absl::Status RunStream(StreamTransport& transport, const StreamRequest& request,
                       StreamReader reader, StreamWriter writer, StreamResult& result);

}  // namespace normd::client

#endif  // NORMD_CLIENT_STREAM_H_
