// The bytes that a stream has inside, and the room for more. Pure.

#ifndef NORMD_SERVER_RPC_STREAM_WINDOW_H_
#define NORMD_SERVER_RPC_STREAM_WINDOW_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

#include "server/accept/stream_limits.h"
#include "server/accept/stream_plan.h"
#include "server/batching/request.h"

namespace normd {

// The bytes inside are the received input bytes that are not yet answered, whether they lack the
// rest of their row, wait, are computed or their result waits for the client. The next message is
// read only when the largest chunk fits beside them. A piece and a chunk fit into the window
// together, so a stream without room is one whose client does not read.
//
// The stream's lease always has these bytes, and those of their output. Before each message the
// stream asks Admission for room; without it, it waits in Admission's line and does not read.
// Everything else continues: received bytes are computed and sent.
//
// Nothing is inside before Open. Not thread-safe.
class StreamWindow {
 public:
  // The header is accepted. Both live as long as the window is used.
  void Open(const StreamLimits& limits, const Geometry& geometry) {
    limits_ = &limits;
    geometry_ = &geometry;
  }

  void OnMessage() { unsettled_ = true; }
  void OnChunk(std::int64_t bytes) {
    inside_bytes_ += bytes;
    last_chunk_bytes_ = bytes;
  }
  // A write begins that answers `bytes`.
  void OnWrite(std::int64_t bytes) { answering_bytes_ = bytes; }
  // It is over, and this many pieces are wholly answered.
  void OnWritten(std::uint64_t pieces) {
    inside_bytes_ -= std::exchange(answering_bytes_, 0);
    answered_pieces_ = pieces;
  }
  // The stream failed: nothing of it is computed or answered any more.
  void Clear() {
    inside_bytes_ = 0;
    answered_pieces_ = std::numeric_limits<std::uint64_t>::max();
  }

  // The bytes that the lease gains or, below 0, returns now. After each message there are some, if
  // only 0: the awaited step has come.
  std::optional<std::int64_t> Settle();

  // Whether the largest chunk fits into the window.
  bool Fits() const {
    return limits_ == nullptr ||
           inside_bytes_ + limits_->max_chunk_bytes() <= limits_->window_bytes;
  }
  // Takes the room that OnRoom gave for one message. In an overdraft there is always some, until
  // its piece is whole. `next_piece` is the number of the piece that comes next.
  bool TakeRoom(std::uint64_t next_piece) {
    return std::exchange(has_room_, false) || overdrawn_piece_ == next_piece;
  }
  // Begins to wait for a step as large as the last chunk. Returns its bytes, with their output's.
  std::int64_t AwaitRoom();
  bool awaits_room() const { return awaits_room_; }
  // As Admission::Waiter's. An overdraft lasts until `next_piece` is answered.
  void OnRoom(bool overdraft, std::uint64_t next_piece);
  // Whether an overdraft ends now.
  bool EndOverdraft();

 private:
  const StreamLimits* limits_ = nullptr;
  const Geometry* geometry_ = nullptr;
  std::int64_t inside_bytes_ = 0;
  std::int64_t answering_bytes_ = 0;
  std::uint64_t answered_pieces_ = 0;
  std::int64_t last_chunk_bytes_ = 0;
  std::int64_t leased_bytes_ = 0;  // The lease's target.
  bool unsettled_ = false;         // A message has come.
  bool awaits_room_ = false;
  bool has_room_ = false;
  std::optional<std::uint64_t> overdrawn_piece_;
};

}  // namespace normd

#endif  // NORMD_SERVER_RPC_STREAM_WINDOW_H_
