// config.textproto: reading it and checking it.

#ifndef NORMD_SERVER_MODEL_CONFIG_H_
#define NORMD_SERVER_MODEL_CONFIG_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/file.h"
#include "google/protobuf/text_format.h"
#include "normd/v1/model_config.pb.h"

namespace normd {

inline constexpr std::int64_t kMaxConfigBytes = std::int64_t{1} << 20;

// Parses protobuf text format. InvalidArgument is ParseText's. Does not check values;
// CheckModelConfig does. Reports the fields' places in the text, if `places` is not null.
absl::StatusOr<v1::ModelConfig> ParseModelConfig(
    absl::string_view text, google::protobuf::TextFormat::ParseInfoTree* places = nullptr);

// Reads, parses and checks a file, opened with kMaxConfigBytes. Errors name the file, and the line
// of the field in question.
absl::StatusOr<v1::ModelConfig> ReadModelConfig(InputFile& file);

// InvalidArgument names the first field that is wrong, what it holds and what was wanted.
absl::Status CheckModelConfig(const v1::ModelConfig& config);

}  // namespace normd

#endif  // NORMD_SERVER_MODEL_CONFIG_H_
