// The safetensors file format, read as hostile input.
// Source: https://github.com/huggingface/safetensors, "Format".

#ifndef NORMD_OPERATIONS_SAFETENSORS_H_
#define NORMD_OPERATIONS_SAFETENSORS_H_

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/file.h"
#include "operations/parameter.h"
#include "operations/safetensors_header.h"

namespace normd {

// A file whose header has been read and checked, but none of its data. No allocation depends on a
// size that the file merely claims: header, offsets, shapes and the file's length are checked
// against each other first.
class SafetensorsFile {
 public:
  // InvalidArgument names the file and its field, or the other format. `file` outlives the result.
  static absl::StatusOr<SafetensorsFile> Open(InputFile& file);

  // Tensors of all types of the format, in the order of their data.
  const std::vector<TensorEntry>& tensors() const { return tensors_; }

  // Reads one of tensors(), which must be of a type that ParameterDType knows.
  absl::StatusOr<Parameter> Read(const TensorEntry& tensor);

 private:
  SafetensorsFile(InputFile& file, std::int64_t data_begin, std::vector<TensorEntry> tensors)
      : file_(&file), data_begin_(data_begin), tensors_(std::move(tensors)) {}

  InputFile* file_;
  std::int64_t data_begin_;
  std::vector<TensorEntry> tensors_;
};

// The types F32, F64, F16 and BF16, as a header names them.
std::optional<norm::DType> ParameterDType(absl::string_view dtype);
// The inverse.
absl::string_view SafetensorsName(norm::DType dtype);

}  // namespace normd

#endif  // NORMD_OPERATIONS_SAFETENSORS_H_
