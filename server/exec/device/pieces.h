// Cuts a batch in device memory into pieces of whole rows that are copied in, computed and copied
// out on their own, so that a large batch overlaps with itself. Pure.

#ifndef NORMD_SERVER_EXEC_DEVICE_PIECES_H_
#define NORMD_SERVER_EXEC_DEVICE_PIECES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "operations/geometry.h"

namespace normd {

// A run of whole rows of one request. Its tensors divide into `units` equal units, samples or rows,
// of which the run has `count` from `first` on.
struct PieceSegment {
  std::size_t request = 0;  // Index into the requests that were cut.
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::int64_t units = 1;
  std::int64_t samples = 0;
  std::int64_t spatial = 1;
  norm::RunSizes spatial_runs = {};

  // The run's beginning and its part in a tensor of the request with `tensor_bytes`.
  std::size_t OffsetIn(std::size_t tensor_bytes) const {
    return tensor_bytes / static_cast<std::size_t>(units) * static_cast<std::size_t>(first);
  }
  std::size_t BytesOf(std::size_t tensor_bytes) const {
    return tensor_bytes / static_cast<std::size_t>(units) * static_cast<std::size_t>(count);
  }
};

// Segments that one launch computes. All cover the same channels: every one of them, or a range for
// a part of one large sample.
struct Piece {
  std::vector<PieceSegment> segments;
  ChannelRange channels{};
  std::int64_t bytes = 0;  // Bytes of the inputs or of the outputs, whichever are more.
};

// Pieces of about `target_bytes`, in order; together they cover every byte of every request once.
// Small requests share a piece; a tensor is cut between samples and, with CutRule::At::kRow,
// samples larger than the target also between rows. A row is never cut, so a piece may be larger
// than the target. Requests without elements appear in no piece; a request that is itself a part of
// a sample shares its pieces with none.
std::vector<Piece> CutIntoPieces(const CutRule& cut, absl::Span<const Geometry> requests,
                                 std::int64_t target_bytes);

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_DEVICE_PIECES_H_
