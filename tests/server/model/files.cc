#include "tests/server/model/files.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace normd::testing {

TempDir::TempDir() : path_(::testing::TempDir() + "normd_XXXXXX") {
  if (mkdtemp(path_.data()) == nullptr) ADD_FAILURE() << "mkdtemp " << path_ << " failed";
}

TempDir::~TempDir() {
  std::error_code error;
  std::filesystem::remove_all(path_, error);
  EXPECT_FALSE(error) << path_ << ": " << error.message();
}

std::string TempDir::Write(absl::string_view relative_path, absl::string_view content) const {
  std::string path = absl::StrCat(path_, "/", relative_path);
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  // A new file: one that is truncated and written again is flushed to the disk by some file
  // systems.
  std::filesystem::remove(path);
  std::ofstream out(path, std::ios::binary);
  out.write(content.data(), static_cast<std::streamsize>(content.size()));
  out.close();
  EXPECT_TRUE(out.good()) << path;
  return path;
}

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
