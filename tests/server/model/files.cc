#include "tests/server/model/files.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace normd::testing {

std::string LengthPrefix(std::uint64_t length) {
  std::string out;
  for (int i = 0; i < 8; ++i) out += static_cast<char>(length >> (8 * i) & 0xff);
  return out;
}

std::string WithHeader(absl::string_view header, absl::string_view data) {
  return absl::StrCat(LengthPrefix(header.size()), header, data);
}

RawTensor FloatTensor(std::string name, const std::vector<float>& values) {
  std::string data(values.size() * sizeof(float), '\0');
  std::memcpy(data.data(), values.data(), data.size());
  return {std::move(name), "F32", {static_cast<std::int64_t>(values.size())}, std::move(data)};
}

std::string Safetensors(const std::vector<RawTensor>& tensors) {
  std::vector<std::string> entries;
  std::string data;
  for (const RawTensor& tensor : tensors) {
    entries.push_back(absl::StrCat("\"", tensor.name, "\":{\"dtype\":\"", tensor.dtype,
                                   "\",\"shape\":[", absl::StrJoin(tensor.shape, ","),
                                   "],\"data_offsets\":[", data.size(), ",",
                                   data.size() + tensor.data.size(), "]}"));
    data += tensor.data;
  }
  return WithHeader(absl::StrCat("{", absl::StrJoin(entries, ","), "}"), data);
}

}  // namespace normd::testing
