// The safetensors file format, read as hostile input.
// Source: https://github.com/huggingface/safetensors, "Format".

#ifndef NORMD_SERVER_MODEL_SAFETENSORS_H_
#define NORMD_SERVER_MODEL_SAFETENSORS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/model/model.h"

namespace normd {

// Every tensor of F32, F64, F16 and BF16; tensors of other types are left out when
// `num_batches_tracked` is their name and are InvalidArgument otherwise. Nothing is allocated from
// a size that the file merely claims: header, offsets, shapes and the file's length are checked
// against each other first. NotFound, InvalidArgument or FailedPrecondition (over `max_bytes`) name
// the file's field.
absl::StatusOr<std::vector<Parameter>> ReadSafetensors(const std::string& path,
                                                       std::int64_t max_bytes);

}  // namespace normd

#endif  // NORMD_SERVER_MODEL_SAFETENSORS_H_
