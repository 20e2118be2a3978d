#include "operations/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <memory>
#include <new>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/printable.h"
#include "wire/data_type.h"

namespace normd {
namespace {

// Numbers in the file are little-endian and are used as they are.
static_assert(std::endian::native == std::endian::little);

constexpr std::int64_t kLengthBytes = 8;
constexpr std::int64_t kMaxHeaderBytes = std::int64_t{16} << 20;
constexpr std::align_val_t kAlignment{64};

absl::Status Invalid(const InputFile& file, absl::string_view reason) {
  return absl::InvalidArgumentError(absl::StrCat(file.name(), ": ", reason));
}

// The format of a file that does not begin with the length of a header, with advice.
std::string DescribeOther(absl::string_view begin) {
  constexpr absl::string_view kSave =
      "; wanted safetensors, as safetensors.torch.save_file(module.state_dict(), path) writes it";
  // Protocols 2 to 5 begin with a specific byte and their number.
  const bool pickle = begin[0] == '\x80' && begin[1] >= 2 && begin[1] <= 5;
  if (absl::StartsWith(begin, "PK\x03\x04")) {
    return absl::StrCat("a zip archive, which is what torch.save writes", kSave);
  }
  if (pickle) return absl::StrCat("a pickle, as torch.save wrote it before PyTorch 1.6", kSave);
  if (absl::StartsWith(begin, "version ")) {
    return "text, perhaps a Git LFS pointer; wanted the safetensors file that `git lfs pull` "
           "fetches for it";
  }
  return absl::StrCat("not a safetensors file: its first ", kLengthBytes,
                      " bytes are not the length of a header of at most ", kMaxHeaderBytes,
                      " bytes");
}

absl::StatusOr<std::string> ReadHeader(InputFile& file) {
  if (file.size_bytes() < kLengthBytes) {
    return Invalid(file, absl::StrCat(file.size_bytes(), " bytes, wanted at least ", kLengthBytes));
  }
  std::array<std::byte, kLengthBytes> raw;
  if (auto status = file.Read(0, absl::MakeSpan(raw)); !status.ok()) return status;
  const auto length = std::bit_cast<std::uint64_t>(raw);
  // Compared unsigned: a length above 2^63 must not turn negative.
  if (length > static_cast<std::uint64_t>(kMaxHeaderBytes)) {
    return Invalid(file, DescribeOther(absl::string_view(reinterpret_cast<const char*>(raw.data()),
                                                         raw.size())));
  }
  const std::int64_t follow = file.size_bytes() - kLengthBytes;
  if (static_cast<std::int64_t>(length) > follow) {
    return Invalid(file, absl::StrCat("header length ", length, ", wanted at most ", follow,
                                      ", the bytes that follow it"));
  }
  std::string header(static_cast<std::size_t>(length), '\0');
  const absl::Status status = file.Read(
      kLengthBytes, absl::MakeSpan(reinterpret_cast<std::byte*>(header.data()), header.size()));
  if (!status.ok()) return status;
  return header;
}

}  // namespace

std::optional<norm::DType> ParameterDType(absl::string_view dtype) {
  const DataTypeNames* type = FindDataType(&DataTypeNames::safetensors, dtype);
  if (type == nullptr || !norm::IsNormalized(type->dtype)) return std::nullopt;
  return type->dtype;
}

absl::string_view SafetensorsName(norm::DType dtype) {
  const DataTypeNames* type = FindDataType(&DataTypeNames::dtype, dtype);
  return type == nullptr ? "" : type->safetensors;
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(InputFile& file) {
  const absl::StatusOr<std::string> header = ReadHeader(file);
  if (!header.ok()) return header.status();
  const std::int64_t data_begin = kLengthBytes + static_cast<std::int64_t>(header->size());
  absl::StatusOr<std::vector<TensorEntry>> tensors =
      ParseSafetensorsHeader(*header, file.size_bytes() - data_begin);
  if (!tensors.ok()) return Invalid(file, tensors.status().message());
  return SafetensorsFile(file, data_begin, *std::move(tensors));
}

absl::StatusOr<Parameter> SafetensorsFile::Read(const TensorEntry& tensor) {
  const std::optional<norm::DType> dtype = ParameterDType(tensor.dtype);
  if (!dtype) return absl::InternalError("a tensor that is no parameter was read");
  const auto bytes = static_cast<std::size_t>(tensor.end - tensor.begin);
  // At least one byte, so that a parameter without elements is still present.
  auto* const memory = static_cast<std::byte*>(
      ::operator new(std::max<std::size_t>(bytes, 1), kAlignment, std::nothrow));
  if (memory == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat(file_->name(), ": tensor \"",
                                                     Printable(tensor.name, 64),
                                                     "\": no memory for ", bytes, " bytes"));
  }
  const std::shared_ptr<std::byte[]> data(
      memory, [](std::byte* pointer) { ::operator delete(pointer, kAlignment); });
  const absl::Status status =
      file_->Read(data_begin_ + tensor.begin, absl::MakeSpan(data.get(), bytes));
  if (!status.ok()) return status;
  return Parameter{tensor.name, *dtype, tensor.shape, data};
}

}  // namespace normd
