#include "client/tensor/npy.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"

namespace normd::client {
namespace {

absl::Status SystemError(const std::string& path, absl::string_view action) {
  return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot ", action));
}

absl::Status InFile(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

// Reads until `out` is full or the file ends; returns the bytes read.
absl::StatusOr<std::size_t> ReadFully(const File& file, std::int64_t offset,
                                      absl::Span<std::byte> out) {
  std::size_t done = 0;
  while (done < out.size()) {
    const ssize_t got = ::pread(file.descriptor.get(), out.data() + done, out.size() - done,
                                offset + static_cast<std::int64_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return SystemError(file.path, "read");
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  return done;
}

absl::Status WriteFully(const File& file, std::int64_t offset, absl::Span<const std::byte> bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t put = ::pwrite(file.descriptor.get(), bytes.data() + done, bytes.size() - done,
                                 offset + static_cast<std::int64_t>(done));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return SystemError(file.path, "write");
    done += static_cast<std::size_t>(put);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<NpyReader> NpyReader::Open(const std::string& path) {
  NpyReader reader;
  reader.file_ = {Descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC)), path};
  if (!reader.file_.descriptor.valid()) return SystemError(path, "open");
  struct stat status = {};
  if (::fstat(reader.file_.descriptor.get(), &status) != 0) return SystemError(path, "stat");
  if (!S_ISREG(status.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  }

  std::string prefix(
      static_cast<std::size_t>(std::min<std::int64_t>(kMaxNpyHeaderBytes, status.st_size)), '\0');
  const absl::StatusOr<std::size_t> got = ReadFully(
      reader.file_, 0, absl::MakeSpan(reinterpret_cast<std::byte*>(prefix.data()), prefix.size()));
  if (!got.ok()) return got.status();
  prefix.resize(*got);
  absl::StatusOr<NpyHeader> header = ParseNpyHeader(prefix);
  if (!header.ok()) return InFile(path, header.status());
  const absl::StatusOr<std::int64_t> bytes = TensorBytes(header->dtype, header->shape);
  if (!bytes.ok()) return InFile(path, bytes.status());
  if (status.st_size - header->data_offset != *bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": ", status.st_size - header->data_offset, " bytes of elements, wanted ", *bytes,
        " for ", norm::Name(header->dtype), " ", header->shape.ToString()));
  }
  reader.header_ = *std::move(header);
  reader.bytes_ = *bytes;
  if (reader.header_.fortran_order) {
    if (absl::Status loaded = reader.LoadFortranOrder(); !loaded.ok()) return loaded;
  }
  return reader;
}

// Reads the file in its order, in which the first dimension varies fastest.
absl::Status NpyReader::LoadFortranOrder() {
  constexpr std::int64_t kBlockBytes = std::int64_t{1} << 20;
  absl::StatusOr<Tensor> tensor = Tensor::Allocate(header_.dtype, header_.shape);
  if (!tensor.ok()) {
    return InFile(file_.path,
                  absl::Status(tensor.status().code(),
                               absl::StrCat("fortran_order: True: ", tensor.status().message(),
                                            "; in Python: a = numpy.load(path, mmap_mode=\"r\"); "
                                            "numpy.lib.format.open_memmap(path2, \"w+\", a.dtype, "
                                            "a.shape)[...] = a")));
  }
  const auto size = static_cast<std::int64_t>(norm::SizeOf(header_.dtype));
  const absl::Span<const std::int64_t> dims = header_.shape.dims();
  std::vector<std::int64_t> strides(dims.size(), size);
  for (std::size_t d = dims.size(); d-- > 1;) strides[d - 1] = strides[d] * dims[d];
  std::vector<std::int64_t> index(dims.size(), 0);
  std::vector<std::byte> block(static_cast<std::size_t>(std::min(kBlockBytes, bytes_)));
  std::byte* to = tensor->mutable_bytes().data();
  for (std::int64_t offset = 0; offset < bytes_; offset += kBlockBytes) {
    const auto part = absl::MakeSpan(block).first(
        static_cast<std::size_t>(std::min(kBlockBytes, bytes_ - offset)));
    if (absl::Status read = ReadAt(offset, part); !read.ok()) return read;
    for (std::size_t i = 0; i < part.size(); i += static_cast<std::size_t>(size)) {
      std::memcpy(to, &part[i], static_cast<std::size_t>(size));
      for (std::size_t d = 0; d < dims.size(); ++d) {
        to += strides[d];
        if (++index[d] < dims[d]) break;
        to -= strides[d] * dims[d];
        index[d] = 0;
      }
    }
  }
  row_major_ = *std::move(tensor);
  return absl::OkStatus();
}

absl::Status NpyReader::ReadAt(std::int64_t offset, absl::Span<std::byte> out) const {
  if (!row_major_.bytes().empty()) {
    const auto from = row_major_.bytes().subspan(static_cast<std::size_t>(offset), out.size());
    std::copy(from.begin(), from.end(), out.begin());
    return absl::OkStatus();
  }
  return header_.big_endian ? ReadSwapped(offset, out) : ReadInFile(offset, out);
}

// `out` may begin and end inside an element.
absl::Status NpyReader::ReadSwapped(std::int64_t offset, absl::Span<std::byte> out) const {
  const auto size = static_cast<std::int64_t>(norm::SizeOf(header_.dtype));
  const std::int64_t cut = offset % size;
  const std::int64_t bytes = cut + static_cast<std::int64_t>(out.size());
  if (cut != 0 || bytes % size != 0) {
    std::vector<std::byte> elements(static_cast<std::size_t>((bytes + size - 1) / size * size));
    absl::Status read = ReadSwapped(offset - cut, absl::MakeSpan(elements));
    std::copy_n(elements.begin() + cut, out.size(), out.begin());
    return read;
  }
  absl::Status read = ReadInFile(offset, out);
  for (auto element = out.begin(); element != out.end(); element += size) {
    std::reverse(element, element + size);
  }
  return read;
}

absl::Status NpyReader::ReadInFile(std::int64_t offset, absl::Span<std::byte> out) const {
  const absl::StatusOr<std::size_t> got = ReadFully(file_, header_.data_offset + offset, out);
  if (!got.ok()) return got.status();
  if (*got != out.size()) {
    return absl::DataLossError(absl::StrCat(file_.path, ": ends at byte ", offset, " + ", *got,
                                            " of its elements, wanted ", offset, " + ",
                                            out.size()));
  }
  return absl::OkStatus();
}

absl::StatusOr<Tensor> NpyReader::ReadAll() const {
  absl::StatusOr<Tensor> tensor = Tensor::Allocate(header_.dtype, header_.shape);
  if (!tensor.ok()) return InFile(file_.path, tensor.status());
  if (absl::Status read = ReadAt(0, tensor->mutable_bytes()); !read.ok()) return read;
  return tensor;
}

absl::StatusOr<NpyWriter> NpyWriter::Create(const std::string& path, norm::DType dtype,
                                            const Shape& shape) {
  constexpr mode_t kMode = 0666;  // The process's umask reduces it.
  NpyWriter writer;
  writer.file_ = {Descriptor(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, kMode)),
                  path};
  if (!writer.file_.descriptor.valid()) return SystemError(path, "open for writing");
  const std::string header = MakeNpyHeader(dtype, shape);
  writer.data_offset_ = static_cast<std::int64_t>(header.size());
  const absl::Status written = WriteFully(
      writer.file_, 0,
      absl::MakeConstSpan(reinterpret_cast<const std::byte*>(header.data()), header.size()));
  if (!written.ok()) return written;
  return writer;
}

absl::Status NpyWriter::WriteAt(std::int64_t offset, absl::Span<const std::byte> bytes) {
  return WriteFully(file_, data_offset_ + offset, bytes);
}

absl::Status NpyWriter::Close() {
  const int descriptor = file_.descriptor.Release();
  if (descriptor >= 0 && ::close(descriptor) != 0) return SystemError(file_.path, "close");
  return absl::OkStatus();
}

absl::StatusOr<Tensor> ReadNpy(const std::string& path) {
  const absl::StatusOr<NpyReader> reader = NpyReader::Open(path);
  if (!reader.ok()) return reader.status();
  return reader->ReadAll();
}

absl::Status WriteNpy(const std::string& path, const TensorView& tensor) {
  absl::StatusOr<NpyWriter> writer = NpyWriter::Create(path, tensor.dtype, tensor.shape);
  if (!writer.ok()) return writer.status();
  if (absl::Status written = writer->WriteAt(0, tensor.bytes); !written.ok()) return written;
  return writer->Close();
}

}  // namespace normd::client
