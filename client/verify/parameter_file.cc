#include "client/verify/parameter_file.h"

#include <cstdint>
#include <cstring>
#include <fstream>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "wire/data_type.h"

namespace normd::client {
namespace {

using Json = nlohmann::json;

absl::Status Bad(const std::string& path, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
}

// The integers of `list`; nullopt when it is anything else.
std::optional<std::vector<std::int64_t>> Integers(const Json& list) {
  if (!list.is_array()) return std::nullopt;
  std::vector<std::int64_t> values;
  for (const Json& value : list) {
    if (!value.is_number_integer()) return std::nullopt;
    values.push_back(value.get<std::int64_t>());
  }
  return values;
}

// The file's bytes from `offset` on.
absl::Status Read(std::ifstream& file, std::int64_t offset, void* out, std::int64_t bytes) {
  file.seekg(offset);
  file.read(static_cast<char*>(out), bytes);
  return file.good() ? absl::OkStatus() : absl::DataLossError("cannot read");
}

absl::StatusOr<Tensor> ReadTensor(std::ifstream& file, norm::DType dtype, const Json& entry,
                                  std::int64_t data_begin, std::int64_t data_bytes) {
  const auto dims = Integers(entry.value("shape", Json()));
  const auto offsets = Integers(entry.value("data_offsets", Json()));
  if (!dims) return absl::InvalidArgumentError("shape: not a list of integers");
  if (!offsets || offsets->size() != 2) {
    return absl::InvalidArgumentError("data_offsets: not a pair of integers");
  }
  absl::StatusOr<Shape> shape = Shape::Create(*dims);
  if (!shape.ok()) return shape.status();
  const absl::StatusOr<std::int64_t> bytes = TensorBytes(dtype, *shape);
  if (!bytes.ok()) return bytes.status();
  const std::int64_t begin = (*offsets)[0];
  const std::int64_t end = (*offsets)[1];
  if (begin < 0 || end < begin || end > data_bytes || end - begin != *bytes) {
    return absl::InvalidArgumentError(absl::StrCat("data_offsets: [", begin, ", ", end,
                                                   "], wanted ", *bytes, " bytes of the ",
                                                   data_bytes, " that the file has"));
  }
  absl::StatusOr<Tensor> tensor = Tensor::Allocate(dtype, *std::move(shape));
  if (!tensor.ok()) return tensor.status();
  if (absl::Status read = Read(file, data_begin + begin, tensor->mutable_bytes().data(), *bytes);
      !read.ok()) {
    return read;
  }
  return tensor;
}

}  // namespace

absl::StatusOr<std::map<std::string, Tensor>> ReadParameterFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return absl::NotFoundError(absl::StrCat(path, ": cannot open"));
  const std::int64_t size = file.tellg();
  std::uint64_t header_bytes = 0;
  constexpr std::int64_t kLengthBytes = sizeof(header_bytes);
  if (size < kLengthBytes || !Read(file, 0, &header_bytes, kLengthBytes).ok() ||
      header_bytes > static_cast<std::uint64_t>(size - kLengthBytes)) {
    return Bad(path, "shorter than its header claims");
  }
  std::string text(header_bytes, '\0');
  if (!Read(file, kLengthBytes, text.data(), static_cast<std::int64_t>(header_bytes)).ok()) {
    return Bad(path, "cannot read the header");
  }
  const Json header = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!header.is_object()) return Bad(path, "the header is not a JSON object");

  const std::int64_t data_begin = kLengthBytes + static_cast<std::int64_t>(header_bytes);
  std::map<std::string, Tensor> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const auto type = entry.is_object() ? entry.find("dtype") : entry.end();
    if (!entry.is_object() || type == entry.end() || !type->is_string()) {
      return Bad(path, absl::StrCat(name, ": no dtype"));
    }
    const DataTypeNames* names =
        FindDataType(&DataTypeNames::safetensors, type->get<std::string>());
    if (names == nullptr || !norm::IsNormalized(names->dtype)) continue;
    absl::StatusOr<Tensor> tensor =
        ReadTensor(file, names->dtype, entry, data_begin, size - data_begin);
    if (!tensor.ok()) return Bad(path, absl::StrCat(name, ": ", tensor.status().message()));
    tensors.emplace(name, *std::move(tensor));
  }
  return tensors;
}

}  // namespace normd::client
