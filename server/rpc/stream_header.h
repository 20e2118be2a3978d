// What the first message of a NormalizeStream call asks for, checked.

#ifndef NORMD_SERVER_RPC_STREAM_HEADER_H_
#define NORMD_SERVER_RPC_STREAM_HEADER_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/model/model.h"
#include "server/model/registry.h"
#include "server/rpc/inputs.h"
#include "server/rpc/queueing.h"
#include "server/rpc/stream_pieces.h"
#include "wire/normalize_request.h"

namespace normd {

struct StreamLimits {
  // Of one stream's input bytes on the server, from their receipt until what was made of them is
  // sent.
  std::int64_t window_bytes = std::int64_t{32} << 20;
  // What a piece should have: enough for a lane, and still in a cache when it is computed and sent.
  std::int64_t piece_bytes = std::int64_t{1} << 20;

  // See PieceAssembler.
  std::int64_t min_kept_bytes = kMinKeptBytes;

  // Of a message's bytes, by the transport.
  std::int64_t max_message_bytes = std::numeric_limits<std::int32_t>::max();

  // A quarter of the window, if a message may have so much: the rest holds the largest piece.
  std::int64_t max_chunk_bytes() const {
    return std::min((window_bytes + 3) / 4, max_message_bytes);
  }
  std::int64_t max_piece_bytes() const { return window_bytes - max_chunk_bytes(); }
};

struct StreamHeader {
  std::shared_ptr<const Model> model;
  norm::Precision precision = norm::Precision::kFloat32;
  CheckedInputs inputs;
  Queueing queueing;    // Of each piece.
  StreamLimits limits;  // Narrower than the server's where the output is larger than the inputs.

  const Geometry& geometry() const { return inputs.geometry; }
  std::int64_t input_bytes() const { return inputs.geometry.InputBytes(); }
  // What so many bytes of the inputs hold, with their part of the output. Requires input_bytes to
  // be no more than a window.
  std::int64_t HeldBytes(std::int64_t input_bytes) const;
  // "64 bytes for shape [2, 8] of float32": what the chunks must bring together.
  std::string WantedData() const;
  // Fits the window.
  PieceSequence Pieces() const;
};

// InvalidArgument and NotFound as Normalize's, and InvalidArgument for data in the header and for
// rows that are too large for the window, with the window that they need.
absl::StatusOr<StreamHeader> CheckStreamHeader(const NormalizeRequestView& view,
                                               const ModelRegistry& registry,
                                               const StreamLimits& limits);

// The answer to it, as a NormalizeStreamResponse.
std::string EncodeStreamHeader(const StreamHeader& header);

}  // namespace normd

#endif  // NORMD_SERVER_RPC_STREAM_HEADER_H_
