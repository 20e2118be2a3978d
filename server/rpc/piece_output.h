// What a lane made of a piece, as a stream sends it.

#ifndef NORMD_SERVER_RPC_PIECE_OUTPUT_H_
#define NORMD_SERVER_RPC_PIECE_OUTPUT_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "grpcpp/support/slice.h"
#include "server/accept/inputs.h"
#include "server/batching/request.h"
#include "server/model/model.h"

namespace normd {

// The outputs' bytes in the stream's order: a single output's as they lie in memory, of several
// outputs one sample of each in turn. Not thread-safe.
class PieceOutput {
 public:
  // Of the outputs that `wanted` has. Internal when `buffers` are not one for each of the piece's
  // outputs, and of its size.
  static absl::StatusOr<PieceOutput> Create(const Geometry& piece, OutputBuffers buffers,
                                            const PlacedOutputs& wanted = {});

  std::int64_t bytes() const { return bytes_; }
  // The next `size` bytes of those that are left. The slice shares the lane's memory where there is
  // one output; several are copied together.
  grpc::Slice Next(std::int64_t size);

 private:
  PieceOutput(std::int64_t samples, OutputBuffers buffers, std::int64_t bytes)
      : buffers_(std::make_shared<OutputBuffers>(std::move(buffers))),
        samples_(samples),
        bytes_(bytes) {}

  void CopyNext(std::byte* to, std::int64_t size);

  std::shared_ptr<OutputBuffers> buffers_;  // shared: with the slices that are being sent.
  std::int64_t samples_;
  std::int64_t bytes_;
  std::int64_t taken_bytes_ = 0;
  // With several outputs: where the next byte is.
  std::int64_t sample_ = 0;
  std::size_t output_ = 0;
  std::int64_t offset_ = 0;  // Within this output's sample.
};

}  // namespace normd

#endif  // NORMD_SERVER_RPC_PIECE_OUTPUT_H_
