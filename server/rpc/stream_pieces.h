// Distributes a stream's arriving bytes to the pieces of its tensors.

#ifndef NORMD_SERVER_RPC_STREAM_PIECES_H_
#define NORMD_SERVER_RPC_STREAM_PIECES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "base/bytes.h"
#include "grpcpp/support/slice.h"
#include "server/accept/stream_limits.h"
#include "server/accept/stream_plan.h"
#include "server/batching/request.h"
#include "server/model/model.h"

namespace normd {

// A complete piece.
struct ReceivedPiece {
  Geometry geometry;
  absl::InlinedVector<ByteViews, kInlinedInputs> inputs;
  std::shared_ptr<void> owner;  // Owns what the views show. shared: as Request::input_owner.
};

// Takes a stream's bytes in order: a tensor's, or for several inputs one sample of each in turn.
// Not thread-safe.
//
// Keeping a slice keeps everything that the transport allocated with it: the rest of the message,
// and parts of others beside it. So slices are kept if they are at least `min_kept_bytes` of their
// allocation and of a message that has little else, and copied if they are smaller. Beside skipped
// bytes of their messages the pieces then keep at most twice their bytes, and one allocation for
// each input; beside other streams' messages at most nine times.
class PieceAssembler {
 public:
  explicit PieceAssembler(PieceSequence pieces, std::int64_t min_kept_bytes = kMinKeptBytes);

  std::int64_t received_bytes() const { return received_bytes_; }

  // Adds the next `bytes`, which lie within `slice`, are no more than the tensors still lack, and
  // come from a message that is `worth_keeping`. Appends the pieces that become complete to `out`.
  void Add(const grpc::Slice& slice, ConstBytes bytes, std::vector<ReceivedPiece>& out,
           bool worth_keeping = true);

 private:
  struct Memory;
  // The received part of one input of the piece.
  struct Input {
    ByteViews views;
    std::string copied;  // After the views.
    // After that: bytes in one allocation, until it is known how many there are.
    const void* run = nullptr;
    std::int64_t run_bytes = 0;
    ByteViews run_views;
    std::vector<grpc::Slice> run_slices;
  };
  void Begin();
  // Begins the next part: all of a single input, else a sample of the next one.
  void BeginPart(std::size_t input);
  void Append(const grpc::Slice& slice, ConstBytes bytes, Input& input, bool worth_keeping);
  void EndRun(Input& input);
  void Flush(Input& input);
  ReceivedPiece Take();

  PieceSequence pieces_;
  std::int64_t min_kept_bytes_;
  std::int64_t received_bytes_ = 0;
  Geometry geometry_;               // For the piece that is being received.
  std::int64_t lacking_bytes_ = 0;  // Still to come of it.
  std::int64_t part_bytes_ = 0;     // The part's missing bytes.
  std::size_t part_input_ = 0;
  std::shared_ptr<Memory> memory_;
  absl::InlinedVector<Input, kInlinedInputs> inputs_;
};

}  // namespace normd

#endif  // NORMD_SERVER_RPC_STREAM_PIECES_H_
