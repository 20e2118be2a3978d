// The messages of NormalizeStream on the wire, without a copy of the tensor's bytes.

#ifndef NORMD_CLIENT_STREAM_WIRE_H_
#define NORMD_CLIENT_STREAM_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/stream.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"
#include "normd/v1/norm_service.pb.h"

namespace normd::client {

// The first message.
grpc::ByteBuffer EncodeStreamHeader(const StreamRequest& request);
// What stands before the bytes of a chunk of this size.
std::string EncodeChunkHead(std::size_t size);

// An answer: a header or a trailer, or the bytes of a chunk in the slices in which they came.
struct StreamAnswer {
  v1::NormalizeStreamResponse message;
  std::vector<grpc::Slice> slices;
  std::vector<absl::Span<const std::byte>> chunk;
  std::int64_t chunk_bytes = 0;
};

// Internal for a message that is no NormalizeStreamResponse.
absl::Status DecodeStreamAnswer(const grpc::ByteBuffer& buffer, StreamAnswer& answer);

// The bytes of all inputs. InvalidArgument as TensorBytes, and for a y that has not as many samples
// as x.
absl::StatusOr<std::int64_t> StreamBytes(const StreamRequest& request);

struct AcceptedStream {
  std::int64_t max_chunk_bytes = 0;
  std::int64_t output_bytes = 0;
};
// Reads the first answer into `result`. Internal for one that does not fit the request.
absl::StatusOr<AcceptedStream> TakeStreamHeader(const grpc::ByteBuffer& buffer,
                                                const StreamRequest& request, StreamResult& result);

// Follows the answers after the header and holds them against the protocol. Not thread-safe.
class StreamReception {
 public:
  explicit StreamReception(std::int64_t total_bytes) : total_bytes_(total_bytes) {}

  // The next answer: a chunk, which is then in `answer`, or the trailer, which is then in `result`.
  // Internal for one that has no place there.
  absl::Status Take(const grpc::ByteBuffer& buffer, StreamAnswer& answer, StreamResult& result);

  std::int64_t received_bytes() const { return received_bytes_; }

 private:
  const std::int64_t total_bytes_;
  std::int64_t received_bytes_ = 0;
};

// What an answer does that breaks the protocol.
absl::Status BrokenAnswer(absl::string_view what);

}  // namespace normd::client

#endif  // NORMD_CLIENT_STREAM_WIRE_H_
