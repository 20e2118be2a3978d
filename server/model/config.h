// config.textproto: reading it, checking it, and what it asks of the parameters.

#ifndef NORMD_SERVER_MODEL_CONFIG_H_
#define NORMD_SERVER_MODEL_CONFIG_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/norm.h"
#include "normd/v1/model_config.pb.h"
#include "server/base/shape.h"

namespace normd {

inline constexpr std::int64_t kMaxConfigBytes = std::int64_t{1} << 20;
inline constexpr std::int64_t kMaxChannels = std::int64_t{1} << 31;

// Parses protobuf text format. InvalidArgument lists the errors with line and column, both counted
// from 1; an unknown field is an error. Checks no values: CheckModelConfig does.
absl::StatusOr<v1::ModelConfig> ParseModelConfig(absl::string_view text);

// Reads and parses a file of at most kMaxConfigBytes. Errors name the file.
absl::StatusOr<v1::ModelConfig> ReadModelConfig(const std::string& path);

// InvalidArgument names the first field that is wrong, what it holds and what was wanted.
absl::Status CheckModelConfig(const v1::ModelConfig& config);

// The functions below require a config that CheckModelConfig accepts.

// A parameter that a config asks for.
struct ExpectedParameter {
  enum class Role { kGamma, kBeta, kMean, kVariance, kLinearWeight, kLinearBias };
  const char* name;
  Role role;
  bool required;
  Shape shape;
};
std::vector<ExpectedParameter> ExpectedParameters(const v1::ModelConfig& config);

// The kernels' types of input that its operation takes.
bool TakesDType(const v1::ModelConfig& config, norm::DType dtype);

// What the kernels compute for it; the dtype is left at its default. Of linear_norm: the norm of
// its products, one row a sample (server/model/linear_norm.h has the whole).
norm::NormSpec MakeSpec(const v1::ModelConfig& config);

// Of LayerNorm and RMSNorm; empty for the other operations, which normalize by channels.
std::vector<std::int64_t> NormalizedShape(const v1::ModelConfig& config);

}  // namespace normd

#endif  // NORMD_SERVER_MODEL_CONFIG_H_
