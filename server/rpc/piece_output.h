// A piece's results in the form in which a stream sends them.

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

// The outputs' bytes in the stream's order: a single output's in memory order; of several outputs
// one sample of each in turn. Not thread-safe.
class PieceOutput {
 public:
  // The outputs of `wanted`. Internal unless `buffers` has one of the right size for each of the
  // piece's outputs.
  static absl::StatusOr<PieceOutput> Create(const Geometry& piece, OutputBuffers buffers,
                                            const PlacedOutputs& wanted = {});

  std::int64_t bytes() const { return bytes_; }
  // The next `size` of the remaining bytes. The slice shares the lane's memory if there is one
  // output; several are copied together.
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
  // With several outputs: the place of the next byte.
  std::int64_t sample_ = 0;
  std::size_t output_ = 0;
  std::int64_t offset_ = 0;  // Within this output's sample.
};

}  // namespace normd

#endif  // NORMD_SERVER_RPC_PIECE_OUTPUT_H_
