// What the first message of a NormalizeStream call asks for, checked.

#ifndef NORMD_SERVER_RPC_STREAM_HEADER_H_
#define NORMD_SERVER_RPC_STREAM_HEADER_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/base/shape.h"
#include "server/model/model.h"
#include "server/model/registry.h"
#include "server/rpc/codec.h"
#include "server/rpc/queueing.h"
#include "server/rpc/stream_pieces.h"

namespace normd {

struct StreamLimits {
  // Of one stream's tensor bytes on the server, from their receipt to the end of their sending.
  std::int64_t window_bytes = std::int64_t{32} << 20;
  // What a piece should have: enough for a lane, and still in a cache when it is computed and sent.
  std::int64_t piece_bytes = std::int64_t{1} << 20;

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
  norm::DType dtype = norm::DType::kFloat32;
  Shape shape;  // Of the input and of the output.
  Geometry geometry;
  Queueing queueing;  // Of each piece.
  StreamLimits limits;

  // What the stream reserves of the server's budget: its window's inputs and outputs.
  std::int64_t BudgetBytes() const;
  // Fits the window.
  PieceSequence Pieces() const;
};

// InvalidArgument and NotFound as Normalize's, and InvalidArgument for data in the header, for a
// model of more than one input, and for rows that are too large for the window, with the window
// that they need.
absl::StatusOr<StreamHeader> CheckStreamHeader(const NormalizeRequestView& view,
                                               const ModelRegistry& registry,
                                               const StreamLimits& limits);

// The answer to it, as a NormalizeStreamResponse.
std::string EncodeStreamHeader(const StreamHeader& header);

}  // namespace normd

#endif  // NORMD_SERVER_RPC_STREAM_HEADER_H_
