// Dense tensors in the clients: row-major, little-endian, no padding.

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
#include "kernels/types.h"

namespace normd::client {

// Parses a name or short name of wire/data_type.h, such as "float32" or "f32", of a type that can
// be normalized. InvalidArgument for anything else.
absl::StatusOr<norm::DType> ParseDType(absl::string_view name);

// Parses "2x64x512x512" or "2,64,512,512". InvalidArgument as Shape::Create, and for text that is
// not a list of integers.
absl::StatusOr<Shape> ParseShape(absl::string_view text);

// The bytes of a tensor. InvalidArgument when they exceed 63 bits.
absl::StatusOr<std::int64_t> TensorBytes(norm::DType dtype, const Shape& shape);

// A tensor's name, type and shape, without its elements.
struct TensorSpec {
  std::string name;  // May be empty for a model's only input or output.
  norm::DType dtype = norm::DType::kFloat32;
  Shape shape;
};

// The input to which a command line's unnamed tensor belongs if other inputs are named.
inline constexpr absl::string_view kFirstInput = "x";

// Borrowed memory. `bytes` need not have the size of dtype and shape: the server refuses such a
// request.
struct TensorView {
  norm::DType dtype = norm::DType::kFloat32;
  Shape shape;
  absl::Span<const std::byte> bytes;
};

// One input of a request.
struct NamedTensor {
  std::string name;  // May be empty for a model's only input.
  TensorView tensor;
  // Keeps tensor.bytes alive. gRPC reads them in place and drops this when it has released them.
  // After a call that met its deadline or was cancelled, that can be later than the call's end: a
  // connection may hold the rest of a message that it was sending. Null: the bytes outlive the
  // connection (constants; buffers that live as long as the process).
  std::shared_ptr<const void> owner;
  // The server's name of the shared memory region in which tensor.bytes lie, and their offset
  // there: the request then names them and carries none. Empty: the request carries them.
  std::string region = {};
  std::int64_t region_offset = 0;
};

// The place of a request's output: memory that this process shares with the server.
struct SharedOutput {
  std::string name;  // May be empty for a model's only output.
  std::string region;
  std::int64_t region_offset = 0;
  absl::Span<std::byte> bytes;        // The output's size, or more.
  std::shared_ptr<const void> owner;  // As in NamedTensor.
};

// Owns its memory, aligned to 64 bytes. Copies share it.
class Tensor {
 public:
  Tensor() = default;

  // Uninitialised. InvalidArgument as TensorBytes; ResourceExhausted, with the size, when the
  // memory cannot be allocated.
  static absl::StatusOr<Tensor> Allocate(norm::DType dtype, Shape shape);

  norm::DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  absl::Span<const std::byte> bytes() const { return {data_.get(), size_}; }
  absl::Span<std::byte> mutable_bytes() { return {data_.get(), size_}; }
  TensorView view() const { return {dtype_, shape_, bytes()}; }
  TensorSpec spec(std::string name = "") const { return {std::move(name), dtype_, shape_}; }
  // The tensor as an input, which shares the memory.
  NamedTensor named(std::string name = "") const { return {std::move(name), view(), owner()}; }
  // Keeps the memory alive for readers that outlive this tensor.
  std::shared_ptr<const void> owner() const { return data_; }

 private:
  norm::DType dtype_ = norm::DType::kFloat32;
  Shape shape_;
  std::size_t size_ = 0;
  std::shared_ptr<std::byte[]> data_;  // shared: calls in flight read it.
};

}  // namespace normd::client

#endif  // NORMD_CLIENT_TENSOR_TENSOR_H_
