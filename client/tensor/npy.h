// .npy files, read and written whole or in parts: a file may be larger than memory.

#ifndef NORMD_CLIENT_TENSOR_NPY_H_
#define NORMD_CLIENT_TENSOR_NPY_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/descriptor.h"
#include "client/tensor/npy_header.h"
#include "client/tensor/tensor.h"

namespace normd::client {

struct File {
  Descriptor descriptor;
  std::string path;
};

// An open file with a checked header: its size matches dtype and shape exactly. The returned bytes
// are row-major and little-endian in any case; a file in Fortran order is held in memory for that.
// ReadAt is thread-safe.
class NpyReader {
 public:
  // NotFound or PermissionDenied when it does not open; InvalidArgument as ParseNpyHeader, and when
  // the file's size does not match. For a file in Fortran order also ResourceExhausted as
  // Tensor::Allocate, and DataLoss as ReadAt. All name the path.
  static absl::StatusOr<NpyReader> Open(const std::string& path);

  norm::DType dtype() const { return header_.dtype; }
  const Shape& shape() const { return header_.shape; }
  const std::string& path() const { return file_.path; }
  std::int64_t bytes() const { return bytes_; }

  // Fills `out` with the tensor's bytes from `offset` on, which must lie within bytes(). Blocks.
  // DataLoss when the file has shrunk meanwhile.
  absl::Status ReadAt(std::int64_t offset, absl::Span<std::byte> out) const;
  // All of it. ResourceExhausted as Tensor::Allocate.
  absl::StatusOr<Tensor> ReadAll() const;

 private:
  NpyReader() = default;

  absl::Status ReadInFile(std::int64_t offset, absl::Span<std::byte> out) const;
  absl::Status ReadSwapped(std::int64_t offset, absl::Span<std::byte> out) const;
  absl::Status LoadFortranOrder();

  File file_;
  NpyHeader header_;
  std::int64_t bytes_ = 0;
  Tensor row_major_;  // The whole tensor, if the file is in Fortran order.
};

// A new file, or an old one emptied, with its header written. WriteAt is thread-safe.
class NpyWriter {
 public:
  static absl::StatusOr<NpyWriter> Create(const std::string& path, norm::DType dtype,
                                          const Shape& shape);

  // Writes the tensor's bytes from `offset` on. Blocks. ResourceExhausted when the disk is full.
  absl::Status WriteAt(std::int64_t offset, absl::Span<const std::byte> bytes);
  // Call it at the end: some errors appear only here.
  absl::Status Close();

 private:
  NpyWriter() = default;

  File file_;
  std::int64_t data_offset_ = 0;
};

absl::StatusOr<Tensor> ReadNpy(const std::string& path);
absl::Status WriteNpy(const std::string& path, const TensorView& tensor);

}  // namespace normd::client

#endif  // NORMD_CLIENT_TENSOR_NPY_H_
