// The bounds of every stream.

#ifndef NORMD_SERVER_ACCEPT_STREAM_LIMITS_H_
#define NORMD_SERVER_ACCEPT_STREAM_LIMITS_H_

#include <algorithm>
#include <cstdint>
#include <limits>

namespace normd {

// The default: a PieceAssembler keeps a slice that fills most of the smaller block of the two, 8
// and 64 KiB, into which gRPC reads.
inline constexpr std::int64_t kMinKeptBytes = std::int64_t{7} << 10;

struct StreamLimits {
  // A stream's input bytes on the server, from their receipt until their results are sent.
  std::int64_t window_bytes = std::int64_t{32} << 20;
  // The target size of a piece: enough for a lane, and still in a cache when it is computed and
  // sent.
  std::int64_t piece_bytes = std::int64_t{1} << 20;
  // See PieceAssembler.
  std::int64_t min_kept_bytes = kMinKeptBytes;
  // A message's bytes, by the transport.
  std::int64_t max_message_bytes = std::numeric_limits<std::int32_t>::max();

  // A quarter of the window, if a message may be that large: the rest holds the largest piece.
  std::int64_t max_chunk_bytes() const {
    return std::min((window_bytes + 3) / 4, max_message_bytes);
  }
  std::int64_t max_piece_bytes() const { return window_bytes - max_chunk_bytes(); }
};

}  // namespace normd

#endif  // NORMD_SERVER_ACCEPT_STREAM_LIMITS_H_
