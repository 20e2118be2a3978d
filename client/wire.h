// The messages of Normalize on the wire, without a copy of the tensor: a request is a header of a
// few bytes and a slice that refers to the caller's memory; an answer's tensor stays in the slices
// in which it arrived.

#ifndef NORMD_CLIENT_WIRE_H_
#define NORMD_CLIENT_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/tensor/tensor.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"
#include "normd/v1/norm_service.pb.h"

namespace normd::client {

// What a NormalizeRequest says beside its inputs; norm_service.proto says what each means.
struct RequestHead {
  absl::string_view model;
  std::int64_t version = 0;
  v1::Priority priority = v1::PRIORITY_UNSPECIFIED;
  std::int64_t queue_timeout_ns = 0;
  v1::Precision precision = v1::PRECISION_UNSPECIFIED;
};

struct RequestInput {
  absl::string_view name;  // May be empty for a model's only input.
  TensorView tensor;
  std::shared_ptr<const void> owner;  // Keeps tensor.bytes alive.
};

// A slice that gRPC only reads; it drops `owner` when the last reference goes, which may be after
// the call: a socket's buffer can outlive a call that met its deadline.
grpc::Slice BorrowingSlice(absl::Span<const std::byte> bytes, std::shared_ptr<const void> owner);

// Encodes a NormalizeRequest. The buffer refers to the inputs' bytes and holds their owners until
// gRPC has let go of them. InvalidArgument when the message exceeds 2 GiB, protobuf's limit.
absl::StatusOr<grpc::ByteBuffer> EncodeRequest(const RequestHead& head,
                                               absl::Span<const RequestInput> inputs);

// A NormalizeResponse with one output. Owns the memory of the answer.
class NormalizeResponse {
 public:
  // Internal, saying what is wrong, for a message that is not a NormalizeResponse with exactly one
  // output whose bytes fit its type and shape.
  static absl::StatusOr<NormalizeResponse> Decode(const grpc::ByteBuffer& message);

  const std::string& model() const { return model_; }
  std::int64_t version() const { return version_; }
  const v1::StageTimes& stages() const { return stages_; }
  const v1::BatchInfo& batch() const { return batch_; }

  norm::DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  std::size_t size_bytes() const { return size_bytes_; }
  // The output's bytes in order, of any split and alignment. Valid as long as this object lives;
  // a move keeps them.
  absl::Span<const absl::Span<const std::byte>> pieces() const { return pieces_; }
  // Copies the output to `out`, which is size_bytes() long.
  void CopyTo(absl::Span<std::byte> out) const;
  // A tensor of its own memory. ResourceExhausted as Tensor::Allocate.
  absl::StatusOr<Tensor> ToTensor() const;

 private:
  struct Output;

  NormalizeResponse() = default;
  // Checks the output's type, shape and size against each other and keeps them.
  absl::Status TakeOutput(const Output& output);

  std::string model_;
  std::int64_t version_ = 0;
  v1::StageTimes stages_;
  v1::BatchInfo batch_;
  norm::DType dtype_ = norm::DType::kFloat32;
  Shape shape_;
  std::size_t size_bytes_ = 0;
  // The vectors' elements do not move with the object, so that short slices, which hold their bytes
  // inside themselves, keep their addresses.
  std::vector<grpc::Slice> slices_;
  std::vector<absl::Span<const std::byte>> pieces_;
};

}  // namespace normd::client

#endif  // NORMD_CLIENT_WIRE_H_
