#include "server/model/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <new>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/base/printable.h"
#include "server/model/file.h"
#include "server/model/safetensors_header.h"

namespace normd {
namespace {

// Numbers in the file are little-endian and are used as they are.
static_assert(std::endian::native == std::endian::little);

constexpr std::int64_t kLengthBytes = 8;
constexpr std::int64_t kMaxHeaderBytes = std::int64_t{16} << 20;
constexpr std::align_val_t kAlignment{64};

std::optional<norm::DType> ToDType(absl::string_view dtype) {
  if (dtype == "F32") return norm::DType::kFloat32;
  if (dtype == "F64") return norm::DType::kFloat64;
  if (dtype == "F16") return norm::DType::kFloat16;
  if (dtype == "BF16") return norm::DType::kBFloat16;
  return std::nullopt;
}

// Of the same code, with the file's name in front.
absl::Status InFile(const InputFile& file, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(file.name(), ": ", status.message()));
}

absl::StatusOr<std::string> ReadHeader(const InputFile& file) {
  if (file.size_bytes() < kLengthBytes) {
    return absl::InvalidArgumentError(absl::StrCat(file.name(), ": ", file.size_bytes(),
                                                   " bytes, wanted at least ", kLengthBytes));
  }
  std::array<std::byte, kLengthBytes> raw;
  if (auto status = file.Read(0, absl::MakeSpan(raw)); !status.ok()) return status;
  const auto length = std::bit_cast<std::uint64_t>(raw);
  const std::int64_t limit = std::min(file.size_bytes() - kLengthBytes, kMaxHeaderBytes);
  // Compared unsigned: a length above 2^63 must not turn negative.
  if (length > static_cast<std::uint64_t>(limit)) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.name(), ": header length ", length, ", wanted at most ", limit,
                     limit == kMaxHeaderBytes ? "" : ", the bytes that follow it"));
  }
  std::string header(static_cast<std::size_t>(length), '\0');
  const absl::Status status = file.Read(
      kLengthBytes, absl::MakeSpan(reinterpret_cast<std::byte*>(header.data()), header.size()));
  if (!status.ok()) return status;
  return header;
}

absl::StatusOr<Parameter> ReadTensor(const InputFile& file, std::int64_t data_begin,
                                     norm::DType dtype, TensorEntry entry) {
  const auto bytes = static_cast<std::size_t>(entry.end - entry.begin);
  // One byte at least, so that a parameter without elements is still present.
  auto* const memory = static_cast<std::byte*>(
      ::operator new(std::max<std::size_t>(bytes, 1), kAlignment, std::nothrow));
  if (memory == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat(file.name(), ": tensor \"",
                                                     Printable(entry.name, 64),
                                                     "\": no memory for ", bytes, " bytes"));
  }
  const std::shared_ptr<std::byte[]> data(
      memory, [](std::byte* pointer) { ::operator delete(pointer, kAlignment); });
  const absl::Status status =
      file.Read(data_begin + entry.begin, absl::MakeSpan(data.get(), bytes));
  if (!status.ok()) return status;
  return Parameter{std::move(entry.name), dtype, std::move(entry.shape), data};
}

}  // namespace

absl::StatusOr<std::vector<Parameter>> ReadSafetensors(const std::string& path,
                                                       std::int64_t max_bytes) {
  const absl::StatusOr<InputFile> file = InputFile::Open(path, max_bytes);
  if (!file.ok()) return file.status();
  const absl::StatusOr<std::string> header = ReadHeader(*file);
  if (!header.ok()) return header.status();
  const std::int64_t data_begin = kLengthBytes + static_cast<std::int64_t>(header->size());
  absl::StatusOr<std::vector<TensorEntry>> entries =
      ParseSafetensorsHeader(*header, file->size_bytes() - data_begin);
  if (!entries.ok()) return InFile(*file, entries.status());

  // All types before any data: a file that will be refused is not read first.
  std::vector<std::pair<TensorEntry, norm::DType>> wanted;
  for (TensorEntry& entry : *entries) {
    if (const std::optional<norm::DType> dtype = ToDType(entry.dtype)) {
      wanted.emplace_back(std::move(entry), *dtype);
    } else if (entry.name != "num_batches_tracked") {
      return absl::InvalidArgumentError(
          absl::StrCat(file->name(), ": tensor \"", Printable(entry.name, 64), "\": dtype ",
                       entry.dtype, ", wanted F32, F64, F16 or BF16"));
    }
  }
  std::vector<Parameter> parameters;
  parameters.reserve(wanted.size());
  for (auto& [entry, dtype] : wanted) {
    absl::StatusOr<Parameter> parameter = ReadTensor(*file, data_begin, dtype, std::move(entry));
    if (!parameter.ok()) return parameter.status();
    parameters.push_back(*std::move(parameter));
  }
  return parameters;
}

}  // namespace normd
