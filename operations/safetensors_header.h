// The JSON header of a safetensors file, checked by itself and against the data after it.

#ifndef NORMD_OPERATIONS_SAFETENSORS_HEADER_H_
#define NORMD_OPERATIONS_SAFETENSORS_HEADER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/shape.h"

namespace normd {

struct TensorEntry {
  std::string name;   // As in the file: any UTF-8.
  std::string dtype;  // One of the format's names, such as "F32" or "I64".
  Shape shape;
  // In the data after the header; end - begin follows from dtype and shape.
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// Parses `json`, at most 16 MiB by the caller's check, and verifies that its tensors cover [0,
// data_bytes) without overlap or hole. The result is in the order of their data. Uses memory in
// proportion to the header's length. InvalidArgument names the tensor and its field.
absl::StatusOr<std::vector<TensorEntry>> ParseSafetensorsHeader(absl::string_view json,
                                                                std::int64_t data_bytes);

}  // namespace normd

#endif  // NORMD_OPERATIONS_SAFETENSORS_HEADER_H_
