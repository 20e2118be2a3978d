// The order in which one stream of bytes carries several tensors.

#ifndef NORMD_CLIENT_TENSOR_STREAM_ORDER_H_
#define NORMD_CLIENT_TENSOR_STREAM_ORDER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/tensor/tensor.h"

namespace normd::client {

// A sample of each tensor in turn, in the given order; a single tensor unchanged. Walks the stream
// from its beginning. A value type.
class StreamOrder {
 public:
  // Requires at least one tensor. Several have `samples` samples of equal size each. 0: each last
  // dimension is a sample, as with servers that do not report the number.
  explicit StreamOrder(absl::Span<const TensorSpec> tensors, std::int64_t samples = 0);

  // Bytes that are adjacent in the stream and in the tensor.
  struct Run {
    std::size_t tensor = 0;
    std::int64_t offset = 0;  // In the tensor.
    std::int64_t size = 0;
  };
  // The next bytes of the stream, at least one and at most `most`. Requires that `most` are left.
  Run Next(std::int64_t most);

 private:
  struct Position {
    std::int64_t sample_bytes = 0;
    std::int64_t at = 0;
  };
  std::vector<Position> tensors_;
  std::size_t next_ = 0;
};

// The bytes of the stream that carries the tensors, which have `samples` samples. ResourceExhausted
// as Tensor::Allocate; InvalidArgument for tensors that do not divide into them.
absl::StatusOr<Tensor> JoinStream(absl::Span<const Tensor> tensors, std::int64_t samples);

// The tensors of a stream with `samples` samples. InvalidArgument when `stream` has another number
// of bytes than they; ResourceExhausted as Tensor::Allocate.
absl::StatusOr<std::vector<Tensor>> SplitStream(absl::Span<const TensorSpec> tensors,
                                                absl::Span<const std::byte> stream,
                                                std::int64_t samples = 0);

}  // namespace normd::client

#endif  // NORMD_CLIENT_TENSOR_STREAM_ORDER_H_
