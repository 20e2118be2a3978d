// A NormalizeStream's messages in order: the header, then chunks of the tensors' bytes.

#ifndef NORMD_SERVER_RPC_STREAM_INPUT_H_
#define NORMD_SERVER_RPC_STREAM_INPUT_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "grpcpp/support/slice.h"
#include "server/accept/accept.h"
#include "server/accept/description.h"
#include "server/model/model.h"
#include "server/rpc/stream_pieces.h"
#include "wire/stream_part.h"

namespace normd {

// The request in a stream's first message. InvalidArgument for a part of another kind, a header
// that is too long, and one that protobuf would not parse.
absl::StatusOr<RequestDescription> ReadStreamHeader(const StreamPartView& part);

// Checks the chunks of an accepted stream and distributes their bytes to its pieces. Not
// thread-safe.
class StreamInput {
 public:
  // `accepted` is a request in chunks that `model` takes. Both outlive this.
  StreamInput(const Model& model, const AcceptedRequest& accepted);

  std::int64_t received_bytes() const { return pieces_.received_bytes(); }

  // Takes the next message, whose slices the part's views lie in, in order. Appends the pieces that
  // become complete to `out`. InvalidArgument, and nothing taken, for a part that is not a chunk,
  // or that is larger than the window or the tensors allow; InvalidArgument for invalid indexes,
  // with the pieces before them in `out`.
  absl::Status Take(const StreamPartView& part, absl::Span<const grpc::Slice> slices,
                    std::vector<ReceivedPiece>& out);

  // The client has half-closed. InvalidArgument unless every byte has come.
  absl::Status TakeEnd() const;

 private:
  absl::Status CheckChunk(const StreamPartView& part) const;
  absl::Status CheckIndexesOf(const ReceivedPiece& piece);
  std::int64_t WantedBytes() const { return accepted_->geometry().InputBytes(); }

  const Model* model_;
  const AcceptedRequest* accepted_;
  PieceAssembler pieces_;
  std::int64_t checked_samples_ = 0;  // Samples whose indexes are valid.
};

}  // namespace normd

#endif  // NORMD_SERVER_RPC_STREAM_INPUT_H_
