// The response to a request, whose tensors stay in the slices in which they arrived.

#ifndef NORMD_CLIENT_RESPONSE_H_
#define NORMD_CLIENT_RESPONSE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/bytes.h"
#include "client/request.h"
#include "client/tensor/tensor.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"
#include "normd/v1/norm_service.pb.h"
#include "wire/tensor_message.h"

namespace normd::client {

// One output. Borrows from its response.
class OutputTensor {
 public:
  OutputTensor(TensorSpec spec, absl::InlinedVector<ConstBytes, 4> pieces, std::int64_t size_bytes)
      : spec_(std::move(spec)),
        pieces_(std::move(pieces)),
        size_bytes_(static_cast<std::size_t>(size_bytes)) {}

  const TensorSpec& spec() const { return spec_; }
  const std::string& name() const { return spec_.name; }  // May be empty for an only output.
  norm::DType dtype() const { return spec_.dtype; }
  const Shape& shape() const { return spec_.shape; }
  std::size_t size_bytes() const { return size_bytes_; }
  // The bytes in order, of any split and alignment; one piece in shared memory. Valid as long as
  // the response lives; moving it keeps them.
  absl::Span<const ConstBytes> pieces() const { return pieces_; }
  // Copies the bytes to `out`, which is size_bytes() long.
  void CopyTo(absl::Span<std::byte> out) const;
  // A tensor with its own memory. ResourceExhausted as Tensor::Allocate.
  absl::StatusOr<Tensor> ToTensor() const;

 private:
  TensorSpec spec_;
  absl::InlinedVector<ConstBytes, 4> pieces_;
  std::size_t size_bytes_ = 0;
};

// Owns the memory of the response.
class NormalizeResponse {
 public:
  // Outputs in shared memory are those of `shared`, which is the request's. Internal, with the
  // reason, unless the message is a response of the protocol with at least one output, with
  // distinct names and bytes that fit types and shapes.
  static absl::StatusOr<NormalizeResponse> Decode(
      const grpc::ByteBuffer& message, Protocol protocol = Protocol::kNormd,
      std::shared_ptr<const SharedTensors> shared = nullptr);

  const std::string& model() const { return model_; }
  std::int64_t version() const { return version_; }
  // Empty except with normd.v1.
  const v1::StageTimes& stages() const { return stages_; }
  const v1::BatchInfo& batch() const { return batch_; }
  // At least one, in the model's order.
  absl::Span<const OutputTensor> outputs() const { return outputs_; }
  // The bytes of all outputs.
  std::size_t size_bytes() const;

 private:
  NormalizeResponse() = default;

  absl::Status DecodeFromNormd();
  absl::Status DecodeFromOpenInference();
  // The memory of an output in shared memory.
  absl::StatusOr<ConstBytes> Find(const ReceivedSharedPart& part) const;
  // Gives an output in `part` its bytes.
  template <typename Received>
  absl::Status TakePart(const std::optional<ReceivedSharedPart>& part, Received& received) const;
  // Adds one of `count` outputs.
  absl::Status Add(absl::StatusOr<OutputTensor> output, std::size_t count);

  std::string model_;
  std::int64_t version_ = 0;
  v1::StageTimes stages_;
  v1::BatchInfo batch_;
  // The vector's elements do not move with the object, so short slices, which hold their bytes
  // inside themselves, keep their addresses.
  std::vector<grpc::Slice> slices_;
  std::shared_ptr<const SharedTensors> shared_;  // shared: with the request. May be null.
  // Data that the Open Inference Protocol's decoder had to copy.
  std::vector<std::shared_ptr<std::string>> copies_;
  absl::InlinedVector<OutputTensor, 1> outputs_;
};

}  // namespace normd::client

#endif  // NORMD_CLIENT_RESPONSE_H_
