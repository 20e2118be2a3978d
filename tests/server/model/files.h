// Files for a model repository, right and wrong ones.

#ifndef NORMD_TESTS_SERVER_MODEL_FILES_H_
#define NORMD_TESTS_SERVER_MODEL_FILES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace normd::testing {

// A new folder that goes, with all in it, at the end.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }
  // Writes a file and the folders above it; returns its path.
  std::string Write(absl::string_view relative_path, absl::string_view content) const;

 private:
  std::string path_;
};

// Eight bytes of length, little-endian.
std::string LengthPrefix(std::uint64_t length);
// A file of this header and data; the length is the header's.
std::string WithHeader(absl::string_view header, absl::string_view data);

struct RawTensor {
  std::string name;
  std::string dtype;  // As in the file: "F32".
  std::vector<std::int64_t> shape;
  std::string data;
};
RawTensor FloatTensor(std::string name, const std::vector<float>& values);
// A right file of these tensors, one after the other.
std::string Safetensors(const std::vector<RawTensor>& tensors);

}  // namespace normd::testing

#endif  // NORMD_TESTS_SERVER_MODEL_FILES_H_
