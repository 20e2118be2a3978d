// The messages of NormalizeStream on the wire, without a copy of the tensors' bytes. The same holds
// as for requests (normalize_request.h).

#ifndef NORMD_WIRE_STREAM_PART_H_
#define NORMD_WIRE_STREAM_PART_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/bytes.h"

namespace normd {

// The one part of a stream's message. `bytes` are views of the slices: the tensors' next bytes, or
// an encoded message. A request's header is a NormalizeRequest (DecodeNormalizeRequest);
// norm_service.proto describes a response's header and trailer.
struct StreamPartView {
  enum class Kind { kNone, kHeader, kChunk, kTrailer };
  Kind kind = Kind::kNone;
  absl::InlinedVector<ConstBytes, 8> bytes;
  std::int64_t size = 0;
};

// Read a NormalizeStreamRequest and a NormalizeStreamResponse. InvalidArgument for a message that
// protobuf would not parse, and for more than one part, of which protobuf would take the last.
// Unknown fields are skipped; a message of nothing else is of kind kNone.
absl::StatusOr<StreamPartView> DecodeStreamRequest(absl::Span<const ConstBytes> slices);
absl::StatusOr<StreamPartView> DecodeStreamResponse(absl::Span<const ConstBytes> slices);

// The beginning of a NormalizeStreamRequest or NormalizeStreamResponse with a chunk of `size`
// bytes, up to those bytes.
std::string EncodeStreamChunkHead(std::size_t size);

}  // namespace normd

#endif  // NORMD_WIRE_STREAM_PART_H_
