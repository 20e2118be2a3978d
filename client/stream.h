// One NormalizeStream call: tensors of any size, of which client and server hold a few chunks.

#ifndef NORMD_CLIENT_STREAM_H_
#define NORMD_CLIENT_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/shape.h"
#include "client/stream_transport.h"
#include "kernels/norm.h"
#include "normd/v1/norm_service.pb.h"

namespace normd::client {

// Of the input's bytes, sent to the server; of the result's, received from it and in all.
struct StreamProgress {
  std::int64_t sent_bytes = 0;
  std::int64_t received_bytes = 0;
  std::int64_t total_bytes = 0;
};

struct StreamResult {
  std::string model;
  std::int64_t version = 0;
  Shape shape;  // Of the result.
  std::int64_t window_bytes = 0;
  v1::NormalizeStreamTrailer trailer;
  bool complete = false;  // The trailer has come, and the whole tensor before it.
};

struct StreamRequest {
  std::string model;
  std::int64_t version = 0;  // 0: the highest that is loaded.
  norm::DType dtype = norm::DType::kFloat32;
  Shape shape;
  // Of the input "y" of a model that takes two. The stream then carries a sample of the input and
  // one of y in turn.
  std::optional<Shape> y_shape;
  v1::Precision precision = v1::PRECISION_UNSPECIFIED;  // Instead of the model's.
  // Of each run of rows that the server computes; norm_service.proto says what each means.
  v1::Priority priority = v1::PRIORITY_UNSPECIFIED;
  Duration queue_timeout{0};
  Duration timeout = Duration::max();                // Of the whole call; none by default.
  std::int64_t chunk_bytes = std::int64_t{1} << 20;  // Of a message; less if the server says so.
  // Called once, when the server has taken the header and before anything is read or written, on
  // the caller's thread, with what is known of the result. May be empty.
  std::function<absl::Status(const StreamResult&)> on_accepted;
  // Called after each chunk of the answer, on the caller's thread. May be empty.
  std::function<void(const StreamProgress&)> on_progress;
};

// Fills `out` with the stream's next bytes, in order. Runs on a thread of the call's own.
using StreamReader = absl::FunctionRef<absl::Status(absl::Span<std::byte> out)>;
// Takes the result's next bytes, in order and of any number. Runs on the caller's thread.
using StreamWriter = absl::FunctionRef<absl::Status(absl::Span<const std::byte> bytes)>;

// Runs the call over a transport that has just begun, up to its status. An error is the reader's,
// the writer's, on_accepted's, or Internal for an answer that breaks the protocol; the caller then
// cancels. OK: the call has ended, and whether well its status says; `result` is complete if it
// did. What Client::NormalizeStream is made of.
absl::Status RunStream(StreamTransport& transport, const StreamRequest& request,
                       StreamReader reader, StreamWriter writer, StreamResult& result);

}  // namespace normd::client

#endif  // NORMD_CLIENT_STREAM_H_
