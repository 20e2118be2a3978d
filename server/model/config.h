// config.textproto: reading it and checking it.

#ifndef NORMD_SERVER_MODEL_CONFIG_H_
#define NORMD_SERVER_MODEL_CONFIG_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "normd/v1/model_config.pb.h"
#include "server/model/file.h"

namespace normd {

inline constexpr std::int64_t kMaxConfigBytes = std::int64_t{1} << 20;

// Parses protobuf text format. InvalidArgument lists the errors with line and column, both counted
// from 1, in words of our own: nothing of the text is quoted, but for an unknown field that is
// nearly a known one or PyTorch's name for it. Checks no values: CheckModelConfig does.
absl::StatusOr<v1::ModelConfig> ParseModelConfig(absl::string_view text);

// Reads and parses a file, opened with kMaxConfigBytes. Errors name the file.
absl::StatusOr<v1::ModelConfig> ReadModelConfig(InputFile& file);

// InvalidArgument names the first field that is wrong, what it holds and what was wanted.
absl::Status CheckModelConfig(const v1::ModelConfig& config);

}  // namespace normd

#endif  // NORMD_SERVER_MODEL_CONFIG_H_
