// The pieces of a stream, from their arrival to the last chunk of their results.

#ifndef NORMD_SERVER_RPC_PIECE_LINE_H_
#define NORMD_SERVER_RPC_PIECE_LINE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "grpcpp/support/slice.h"
#include "server/accept/inputs.h"
#include "server/batching/request.h"
#include "server/rpc/norm_messages.h"
#include "server/rpc/piece_output.h"

namespace normd {

// Pieces are pushed in order, computed in any order, and answered in order. A piece leaves the line
// with the last chunk of its result. Their numbers count from 0. Not thread-safe.
class PieceLine {
 public:
  // A run of whole rows in progress.
  struct Piece {
    std::uint64_t id = 0;
    Geometry geometry;
    std::unique_ptr<Request> request;   // Until it is pushed.
    std::optional<PieceOutput> output;  // Once computed.
    std::int64_t sent_bytes = 0;        // Taken by TakeChunk.
    std::int64_t batch_id = 0;
  };
  struct Chunk {
    grpc::Slice data;
    std::int64_t answered_bytes;  // The share of the inputs' bytes that it answers.
  };

  bool empty() const { return pieces_.empty(); }
  // The numbers of the first piece in the line, and of the next one to come.
  std::uint64_t first() const { return static_cast<std::uint64_t>(totals_.pieces); }
  std::uint64_t next() const { return first() + pieces_.size(); }
  // Whether a piece is pushed and not done.
  bool computing() const { return computing_ > 0; }

  void Add(std::unique_ptr<Request> request);

  // The first piece that is not pushed, which then counts as computing until OnDone. Null: there is
  // none.
  std::unique_ptr<Request> Push();
  // The last pushed piece, to which OnDone came at once, is to be pushed again.
  void PutBack(std::unique_ptr<Request> request) {
    pieces_[--pushed_].request = std::move(request);
  }
  void OnDone() { --computing_; }

  // Takes the outputs of `wanted` from a completion without an error. Errors as
  // PieceOutput::Create.
  absl::Status SetResult(std::uint64_t number, Completion& completion, const PlacedOutputs& wanted);
  bool has_chunk() const { return !empty() && pieces_.front().output.has_value(); }
  // The next part of the first piece's result. Requires has_chunk().
  Chunk TakeChunk();

  // Moves the line of a stream that failed to `pieces`, which is empty. Pieces that are pushed
  // compute until their OnDone.
  void Abandon(std::deque<Piece>& pieces);

  // The stages of all results, and the taken pieces and bytes.
  const StreamTotals& totals() const { return totals_; }
  // The batch of the last result.
  const BatchInfo& batch() const { return batch_; }

 private:
  std::deque<Piece> pieces_;
  std::size_t pushed_ = 0;  // How many of them.
  std::int64_t computing_ = 0;
  StreamTotals totals_;
  BatchInfo batch_;
  std::int64_t last_batch_ = 0;  // The last piece that left was in it.
};

}  // namespace normd

#endif  // NORMD_SERVER_RPC_PIECE_LINE_H_
