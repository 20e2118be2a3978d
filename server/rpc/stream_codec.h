// The wire form of NormalizeStream's messages, without a copy of the tensor's bytes. What codec.h
// says of Normalize's messages holds here.

#ifndef NORMD_SERVER_RPC_STREAM_CODEC_H_
#define NORMD_SERVER_RPC_STREAM_CODEC_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/bytes.h"

namespace normd {

// The one part that a NormalizeStreamRequest has. `bytes` are views of the slices: an encoded
// NormalizeRequest (see DecodeNormalizeRequest) or the tensor's next bytes.
struct StreamPartView {
  enum class Kind { kNone, kHeader, kChunk };
  Kind kind = Kind::kNone;
  absl::InlinedVector<ConstBytes, 8> bytes;
  std::int64_t size = 0;
};

// InvalidArgument for a message that protobuf would not parse, and for more than one part; protobuf
// would take the last. Unknown fields are skipped; a message of nothing else is of kind kNone.
absl::StatusOr<StreamPartView> DecodeStreamRequest(absl::Span<const ConstBytes> slices);

// A NormalizeStreamResponse with a chunk of `size` bytes, up to those bytes.
std::string EncodeStreamChunkHead(std::size_t size);

}  // namespace normd

#endif  // NORMD_SERVER_RPC_STREAM_CODEC_H_
