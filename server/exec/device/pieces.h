// Cuts a batch that lies in device memory into pieces of whole rows that copy in, compute and copy
// out on their own, so that a large batch overlaps with itself. Pure.

#ifndef NORMD_SERVER_EXEC_DEVICE_PIECES_H_
#define NORMD_SERVER_EXEC_DEVICE_PIECES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/norm.h"
#include "server/model/model.h"

namespace normd {

// A run of whole rows of one request.
struct PieceSegment {
  std::size_t request = 0;          // Index into the requests that were cut.
  std::int64_t request_offset = 0;  // Bytes from the start of the request's tensor.
  std::int64_t bytes = 0;
  std::int64_t samples = 0;
  std::int64_t spatial = 1;
};

// Segments that one launch computes. All cover the same channels: every one of them, or a range for
// a part of one large sample.
struct Piece {
  std::vector<PieceSegment> segments;
  ChannelRange channels{};
  std::int64_t bytes = 0;
};

// Pieces of about `target_bytes`, in order; together they cover every byte of every request once.
// Small requests share a piece; a tensor is cut between samples and, by CutRule::At::kRow, samples
// larger than the target also between rows. A row is never cut, so a piece may be larger than the
// target. Requests without elements appear in no piece; one that is itself a part of a sample
// shares its pieces with none.
std::vector<Piece> CutIntoPieces(const CutRule& cut, absl::Span<const Geometry> requests,
                                 std::int64_t target_bytes);

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_DEVICE_PIECES_H_
