// The request of a NormalizeStream call, and its result.

#ifndef NORMD_CLIENT_STREAM_REQUEST_H_
#define NORMD_CLIENT_STREAM_REQUEST_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/request.h"
#include "client/tensor/tensor.h"
#include "normd/v1/norm_service.pb.h"

namespace normd::client {

// The bytes of the inputs that have been sent, and of the outputs that have been received, so far
// and in all.
struct StreamProgress {
  std::int64_t sent_bytes = 0;
  std::int64_t received_bytes = 0;
  std::int64_t total_bytes = 0;
};

struct StreamResult {
  std::string model;
  std::int64_t version = 0;
  std::vector<TensorSpec> outputs;  // At least one; several come in the order of StreamOrder.
  std::int64_t samples = 0;         // Samples per tensor, for StreamOrder.
  std::int64_t window_bytes = 0;
  v1::NormalizeStreamTrailer trailer;
  bool complete = false;  // The trailer has come, and the whole tensors before it.
};

struct StreamRequest : CallFields {
  // In the model's order, in which the stream carries them (StreamOrder, with
  // StreamResult::samples); a model's only input needs no name.
  std::vector<TensorSpec> inputs;
  // The most in one message; less if the server says so.
  std::int64_t chunk_bytes = std::int64_t{1} << 20;
  // Called once, on the caller's thread, when the server has accepted the header and before
  // anything is read or written. Gets what is known of the result. May be empty.
  std::function<absl::Status(const StreamResult&)> on_accepted;
  // Called after each chunk of the response, on the caller's thread. May be empty.
  std::function<void(const StreamProgress&)> on_progress;
};

}  // namespace normd::client

#endif  // NORMD_CLIENT_STREAM_REQUEST_H_
