// Files for a model repository, right and wrong ones.

#ifndef NORMD_TESTS_SERVER_MODEL_FILES_H_
#define NORMD_TESTS_SERVER_MODEL_FILES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "tests/support/temp_folder.h"

namespace normd::testing {

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
