// The messages of both kinds of NormalizeStream call: encodes the header, and checks the responses
// against the protocol.

#ifndef NORMD_CLIENT_STREAM_PROTOCOL_H_
#define NORMD_CLIENT_STREAM_PROTOCOL_H_

#include <cstdint>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/bytes.h"
#include "client/stream_request.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"

namespace normd::client {

// The first message.
grpc::ByteBuffer EncodeStreamHeader(const StreamRequest& request);
// A message with the tensors' next bytes, which `data` holds.
grpc::ByteBuffer EncodeStreamChunk(const grpc::Slice& data);

// The bytes of all inputs. InvalidArgument for no input, as TensorBytes, and for an input whose
// number of samples differs from the first's.
absl::StatusOr<std::int64_t> StreamBytes(const StreamRequest& request);

struct AcceptedStream {
  std::int64_t max_chunk_bytes = 0;
  std::int64_t output_bytes = 0;
};
// Reads the first response into `result`. Internal for one that does not fit the request.
absl::StatusOr<AcceptedStream> TakeStreamHeader(const grpc::ByteBuffer& buffer,
                                                const StreamRequest& request, StreamResult& result);

// A chunk of the response, in the slices in which it came.
struct StreamChunk {
  std::vector<grpc::Slice> slices;
  absl::InlinedVector<ConstBytes, 8> pieces;  // Views of the slices.
};

// Follows the responses after the header and checks them against the protocol. Not thread-safe.
class StreamReception {
 public:
  explicit StreamReception(std::int64_t total_bytes) : total_bytes_(total_bytes) {}

  // Takes the next response: a chunk, which is then in `chunk`, or the trailer, which is then in
  // `result` and leaves `chunk` empty. Internal for one that is out of place.
  absl::Status Take(const grpc::ByteBuffer& buffer, StreamChunk& chunk, StreamResult& result);

  std::int64_t received_bytes() const { return received_bytes_; }

 private:
  const std::int64_t total_bytes_;
  std::int64_t received_bytes_ = 0;
};

// The error of a response that breaks the protocol.
absl::Status BrokenResponse(absl::string_view what);

}  // namespace normd::client

#endif  // NORMD_CLIENT_STREAM_PROTOCOL_H_
