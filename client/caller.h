// A Caller sends Normalize calls and never blocks: a client of one server, or of a fleet.

#ifndef NORMD_CLIENT_CALLER_H_
#define NORMD_CLIENT_CALLER_H_

#include <cstddef>
#include <memory>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "client/request.h"
#include "client/response.h"
#include "client/stream_request.h"

namespace normd::client {

struct StreamedTensor;

// A call in flight. Thread-safe. Dropping it does not end the call.
class PendingCall {
 public:
  virtual ~PendingCall() = default;
  // Asks for an early end: `done` then receives CANCELLED, or the response if that is faster.
  virtual void Cancel() = 0;
};

// Thread-safe.
class Caller {
 public:
  virtual ~Caller() = default;

  // Runs exactly once, on one of gRPC's threads and never within NormalizeAsync. It must not block;
  // it may start further calls.
  using Done = absl::AnyInvocable<void(absl::StatusOr<NormalizeResponse>) &&>;

  // Starts a call; does not block. The tensors' bytes are not copied on the way to the socket.
  virtual std::shared_ptr<PendingCall> NormalizeAsync(const EncodedRequest& request,
                                                      Duration timeout, Done done) = 0;

  // Sends a tensor in memory as a stream. Needs no thread, so many can be in flight. `on_bytes`
  // (may be empty) gets the result's bytes as they come, in order; then `done` runs, exactly once.
  // Both run on gRPC's threads and never within NormalizeStreamAsync; they must not block.
  using StreamDone = absl::AnyInvocable<void(absl::StatusOr<StreamResult>) &&>;
  virtual std::shared_ptr<PendingCall> NormalizeStreamAsync(
      std::shared_ptr<const StreamedTensor> tensor,
      absl::AnyInvocable<void(absl::Span<const std::byte>)> on_bytes, StreamDone done) = 0;
};

}  // namespace normd::client

#endif  // NORMD_CLIENT_CALLER_H_
