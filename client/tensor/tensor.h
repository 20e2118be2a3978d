// Dense tensors as the clients hold them: row-major, little-endian, no padding.

#ifndef NORMD_CLIENT_TENSOR_TENSOR_H_
#define NORMD_CLIENT_TENSOR_TENSOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/shape.h"
#include "kernels/norm.h"

namespace normd::client {

// One of the names or short names of wire/data_type.h, such as "float32" or "f32", of a type that
// is normalized. InvalidArgument for anything else.
absl::StatusOr<norm::DType> ParseDType(absl::string_view name);

// "2x64x512x512" or "2,64,512,512". InvalidArgument as Shape::Create, and for text that is no list
// of integers.
absl::StatusOr<Shape> ParseShape(absl::string_view text);

// The bytes of a tensor. InvalidArgument when they exceed 63 bits.
absl::StatusOr<std::int64_t> TensorBytes(norm::DType dtype, const Shape& shape);

// What a tensor is called and how it is made, without its elements.
struct TensorSpec {
  std::string name;  // May be empty for a model's only input or output.
  norm::DType dtype = norm::DType::kFloat32;
  Shape shape;
};

// The input that a command line means with the tensor that it does not name, where it names others.
inline constexpr absl::string_view kFirstInput = "x";

// Borrowed memory. Whether `bytes` has the size that dtype and shape ask for is not an invariant: a
// request that is wrong about it is the server's to refuse.
struct TensorView {
  norm::DType dtype = norm::DType::kFloat32;
  Shape shape;
  absl::Span<const std::byte> bytes;
};

// One input of a request.
struct NamedTensor {
  std::string name;  // May be empty for a model's only input.
  TensorView tensor;
  // Keeps tensor.bytes alive. gRPC reads them in place and drops this when it has let go of them,
  // which after a call that met its deadline or was cancelled can be later than the call's end: a
  // connection may hold the rest of a message that it was sending. Null: the bytes outlive the
  // connection (constants; buffers that live as long as the process).
  std::shared_ptr<const void> owner;
  // The region of shared memory in which tensor.bytes lie, by its name on the server, and where in
  // it: then the request names them and carries none. Empty: the request carries them.
  std::string region = {};
  std::int64_t region_offset = 0;
};

// Where an output of a request is to go: memory that this process shares with the server.
struct SharedOutput {
  std::string name;  // May be empty for a model's only output.
  std::string region;
  std::int64_t region_offset = 0;
  absl::Span<std::byte> bytes;        // As many as the output has, or more.
  std::shared_ptr<const void> owner;  // As NamedTensor's.
};

// Owns its memory, aligned to 64 bytes. Copies share it.
class Tensor {
 public:
  Tensor() = default;

  // Uninitialised. InvalidArgument as TensorBytes; ResourceExhausted, with the size, when the
  // memory is not there.
  static absl::StatusOr<Tensor> Allocate(norm::DType dtype, Shape shape);

  norm::DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  absl::Span<const std::byte> bytes() const { return {data_.get(), size_}; }
  absl::Span<std::byte> mutable_bytes() { return {data_.get(), size_}; }
  TensorView view() const { return {dtype_, shape_, bytes()}; }
  TensorSpec spec(std::string name = "") const { return {std::move(name), dtype_, shape_}; }
  // As an input, which shares the memory.
  NamedTensor named(std::string name = "") const { return {std::move(name), view(), owner()}; }
  // Keeps the memory alive, for those who read it after this tensor is gone.
  std::shared_ptr<const void> owner() const { return data_; }

 private:
  norm::DType dtype_ = norm::DType::kFloat32;
  Shape shape_;
  std::size_t size_ = 0;
  std::shared_ptr<std::byte[]> data_;  // shared: calls in flight read it.
};

}  // namespace normd::client

#endif  // NORMD_CLIENT_TENSOR_TENSOR_H_
