// config.textproto: reading it, checking it, and what it asks of the parameters.

#ifndef NORMD_SERVER_MODEL_CONFIG_H_
#define NORMD_SERVER_MODEL_CONFIG_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/shape.h"
#include "kernels/norm.h"
#include "normd/v1/model_config.pb.h"
#include "server/model/file.h"

namespace normd {

inline constexpr std::int64_t kMaxConfigBytes = std::int64_t{1} << 20;
inline constexpr std::int64_t kMaxChannels = std::int64_t{1} << 31;

// Parses protobuf text format. InvalidArgument lists the errors with line and column, both counted
// from 1, in words of our own: nothing of the text is quoted, but for an unknown field that is
// nearly a known one or PyTorch's name for it. Checks no values: CheckModelConfig does.
absl::StatusOr<v1::ModelConfig> ParseModelConfig(absl::string_view text);

// Reads and parses a file, opened with kMaxConfigBytes. Errors name the file.
absl::StatusOr<v1::ModelConfig> ReadModelConfig(InputFile& file);

// InvalidArgument names the first field that is wrong, what it holds and what was wanted.
absl::Status CheckModelConfig(const v1::ModelConfig& config);

// The functions below require a config that CheckModelConfig accepts.

// A parameter that a config asks for.
struct ExpectedParameter {
  enum class Role { kGamma, kBeta, kMean, kVariance, kLinearWeight, kLinearBias };
  const char* name;  // PyTorch's.
  Role role;
  // False: of weight and bias, one suffices, as with a module's bias=False.
  bool required;
  Shape shape;
};
std::vector<ExpectedParameter> ExpectedParameters(const v1::ModelConfig& config);

// Of each of a norm's parameters; of linear_norm: of what its norm would have, [out_features].
Shape ParameterShape(const v1::ModelConfig& config);

// The kernels' types of input that its operation takes.
bool TakesDType(const v1::ModelConfig& config, norm::DType dtype);

// What the kernels compute for it on inputs of `dtype`. Of linear_norm: the norm of its products,
// one row a sample (server/model/linear_norm.h has the whole).
norm::NormSpec MakeSpec(const v1::ModelConfig& config, norm::DType dtype);

// Of LayerNorm and RMSNorm; empty for the other operations, which normalize by channels.
std::vector<std::int64_t> NormalizedShape(const v1::ModelConfig& config);

}  // namespace normd

#endif  // NORMD_SERVER_MODEL_CONFIG_H_
