#include "client/region.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace normd::client {

std::size_t WholePages(std::size_t bytes) {
  constexpr std::size_t kPage = 4096;
  return (bytes + kPage - 1) / kPage * kPage;
}

absl::Status Region::Check(std::size_t offset, std::size_t bytes) const {
  if (offset <= size_ && bytes <= size_ - offset) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrCat("shared memory: ", bytes, " bytes from ", offset,
                                            " on, wanted a part of the region's ", size_));
}

absl::StatusOr<NamedTensor> Region::Input(std::string name, norm::DType dtype, Shape shape,
                                          std::size_t offset) const {
  const absl::StatusOr<std::int64_t> size = TensorBytes(dtype, shape);
  if (!size.ok()) return size.status();
  const auto bytes = static_cast<std::size_t>(*size);
  if (absl::Status status = Check(offset, bytes); !status.ok()) return status;
  return NamedTensor{std::move(name),
                     {dtype, std::move(shape), {data_ + offset, bytes}},
                     shared_from_this(),
                     name_,
                     static_cast<std::int64_t>(offset)};
}

absl::StatusOr<SharedOutput> Region::Output(std::string name, std::size_t offset,
                                            std::size_t bytes) const {
  if (absl::Status status = Check(offset, bytes); !status.ok()) return status;
  return SharedOutput{std::move(name),
                      name_,
                      static_cast<std::int64_t>(offset),
                      {data_ + offset, bytes},
                      shared_from_this()};
}

absl::Status Region::Write(std::size_t offset, absl::Span<const std::byte> bytes) const {
  absl::Status status = Check(offset, bytes.size());
  return status.ok() ? CopyIn(data_ + offset, bytes) : status;
}

absl::Status Region::Read(std::size_t offset, absl::Span<std::byte> bytes) const {
  absl::Status status = Check(offset, bytes.size());
  return status.ok() ? CopyOut(bytes, data_ + offset) : status;
}

}  // namespace normd::client
