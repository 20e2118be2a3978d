#include "server/model/config.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "base/printable.h"
#include "server/model/linear_norm.h"

namespace normd {
namespace {

constexpr double kDefaultEps = 1e-5;
constexpr std::int64_t kMaxQueueDelayUs = 60'000'000;
constexpr std::size_t kMaxParameterNameBytes = 512;
constexpr char kNameWish[] = "1 to 512 bytes of valid UTF-8";

absl::Status Invalid(absl::string_view field, absl::string_view got, absl::string_view wanted) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", got, ", wanted ", wanted));
}

// Enough to keep a string out of responses that a client could then not parse.
bool IsUtf8(absl::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const unsigned lead = static_cast<unsigned char>(text[i]);
    const std::size_t length = lead < 0x80       ? 1
                               : lead >> 5 == 6  ? 2
                               : lead >> 4 == 14 ? 3
                               : lead >> 3 == 30 ? 4
                                                 : 0;
    if (length == 0 || text.size() - i < length) return false;
    unsigned code = length == 1 ? lead : lead & (0x7fu >> length);
    for (std::size_t k = 1; k < length; ++k) {
      const unsigned next = static_cast<unsigned char>(text[i + k]);
      if (next >> 6 != 2) return false;
      code = code << 6 | (next & 0x3f);
    }
    constexpr unsigned kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
    const bool surrogate = code >= 0xd800 && code <= 0xdfff;
    if (code < kSmallest[length] || code > 0x10ffff || surrogate) return false;
    i += length;
  }
  return true;
}

absl::Status CheckChannels(const std::string& operation, std::int64_t channels) {
  if (channels < 1 || channels > kMaxChannels) {
    return Invalid(operation + ".channels", absl::StrCat(channels),
                   absl::StrCat("1 to ", kMaxChannels));
  }
  return absl::OkStatus();
}

absl::Status CheckNormalizedShape(const std::string& operation,
                                  absl::Span<const std::int64_t> dims) {
  const std::string field = operation + ".normalized_shape";
  if (dims.empty()) return Invalid(field, "missing", "at least one dimension");
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] < 1) {
      return Invalid(absl::StrCat(field, "[", i, "]"), absl::StrCat(dims[i]), "at least 1");
    }
  }
  const absl::StatusOr<Shape> shape = Shape::Create(dims);
  if (!shape.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(field, ": ", shape.status().message()));
  }
  return absl::OkStatus();
}

template <typename Operation>
absl::Status CheckEps(const std::string& name, const Operation& operation) {
  if (operation.has_eps() && !(std::isfinite(operation.eps()) && operation.eps() >= 0)) {
    return Invalid(name + ".eps", absl::StrCat(operation.eps()), "a finite value >= 0");
  }
  return absl::OkStatus();
}

absl::Status CheckOperation(const v1::ModelConfig& config) {
  switch (config.operation_case()) {
    case v1::ModelConfig::kInstanceNorm: {
      const v1::InstanceNorm& op = config.instance_norm();
      if (auto status = CheckChannels("instance_norm", op.channels()); !status.ok()) return status;
      return CheckEps("instance_norm", op);
    }
    case v1::ModelConfig::kGroupNorm: {
      const v1::GroupNorm& op = config.group_norm();
      if (auto status = CheckChannels("group_norm", op.channels()); !status.ok()) return status;
      if (op.groups() < 1 || op.channels() % op.groups() != 0) {
        return Invalid("group_norm.groups", absl::StrCat(op.groups()),
                       absl::StrCat("a divisor of ", op.channels(), " channels"));
      }
      return CheckEps("group_norm", op);
    }
    case v1::ModelConfig::kLayerNorm: {
      const v1::LayerNorm& op = config.layer_norm();
      if (auto status = CheckNormalizedShape("layer_norm", op.normalized_shape()); !status.ok()) {
        return status;
      }
      return CheckEps("layer_norm", op);
    }
    case v1::ModelConfig::kRmsNorm: {
      const v1::RmsNorm& op = config.rms_norm();
      if (auto status = CheckNormalizedShape("rms_norm", op.normalized_shape()); !status.ok()) {
        return status;
      }
      return CheckEps("rms_norm", op);
    }
    case v1::ModelConfig::kBatchNorm: {
      const v1::BatchNorm& op = config.batch_norm();
      if (auto status = CheckChannels("batch_norm", op.channels()); !status.ok()) return status;
      return CheckEps("batch_norm", op);
    }
    case v1::ModelConfig::kLinearNorm: {
      const v1::LinearNorm& op = config.linear_norm();
      if (auto status = CheckLinearNorm(op); !status.ok()) return status;
      return CheckEps("linear_norm", op);
    }
    case v1::ModelConfig::OPERATION_NOT_SET: break;
  }
  return Invalid("operation", "missing",
                 "one of instance_norm, group_norm, layer_norm, rms_norm, batch_norm, linear_norm");
}

absl::Status CheckDtypes(const v1::ModelConfig& config) {
  unsigned seen = 0;
  for (int i = 0; i < config.dtypes_size(); ++i) {
    const v1::DataType dtype = config.dtypes(i);
    const std::string field = absl::StrCat("dtypes[", i, "]");
    if (!v1::DataType_IsValid(dtype) || dtype == v1::DATA_TYPE_UNSPECIFIED) {
      return Invalid(field, absl::StrCat(static_cast<int>(dtype)),
                     "FLOAT32, FLOAT64, FLOAT16 or BFLOAT16");
    }
    if (const auto kernel = FromProto(dtype); !kernel.ok() || !TakesDType(config, *kernel)) {
      return Invalid(field, v1::DataType_Name(dtype), "FLOAT32, FLOAT16 or BFLOAT16");
    }
    if ((seen >> dtype & 1) != 0) return Invalid(field, v1::DataType_Name(dtype), "each type once");
    seen |= 1u << dtype;
  }
  return absl::OkStatus();
}

absl::Status CheckLayoutAndActivation(const v1::ModelConfig& config) {
  if (!v1::Layout_IsValid(config.layout())) {
    return Invalid("layout", absl::StrCat(static_cast<int>(config.layout())),
                   "CHANNELS_FIRST or CHANNELS_LAST");
  }
  if (config.layout() != v1::CHANNELS_FIRST &&
      (config.has_layer_norm() || config.has_rms_norm() || config.has_linear_norm())) {
    return Invalid("layout", v1::Layout_Name(config.layout()),
                   "none for an operation without channels");
  }
  if (!v1::Activation_IsValid(config.activation())) {
    return Invalid("activation", absl::StrCat(static_cast<int>(config.activation())),
                   "NONE, RELU, LEAKY_RELU, SILU, GELU_ERF or GELU_TANH");
  }
  if (config.has_leaky_slope_float()) {
    return Invalid("leaky_slope_float", absl::StrCat(config.leaky_slope_float()), "leaky_slope");
  }
  if (config.has_leaky_slope()) {
    if (config.activation() != v1::LEAKY_RELU) {
      return Invalid(
          "leaky_slope", absl::StrCat(config.leaky_slope()),
          absl::StrCat("none for activation ", v1::Activation_Name(config.activation())));
    }
    // Not above what float32 holds, in which most types compute.
    if (!(std::abs(config.leaky_slope()) <= std::numeric_limits<float>::max())) {
      return Invalid("leaky_slope", absl::StrCat(config.leaky_slope()), "a finite float32 value");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckBatching(const v1::BatchingConfig& batching) {
  const auto positive = [](absl::string_view field, bool present, std::int64_t value) {
    if (!present || value >= 1) return absl::OkStatus();
    return Invalid(field, absl::StrCat(value), "at least 1");
  };
  for (const absl::Status& status :
       {positive("batching.max_rows", batching.has_max_rows(), batching.max_rows()),
        positive("batching.max_bytes", batching.has_max_bytes(), batching.max_bytes()),
        positive("batching.max_queue_requests", batching.has_max_queue_requests(),
                 batching.max_queue_requests())}) {
    if (!status.ok()) return status;
  }
  // 0 is a delay, and the server's default: a free lane takes what is there.
  const std::int64_t delay_us = batching.max_queue_delay_us();
  if (delay_us < 0 || delay_us > kMaxQueueDelayUs) {
    return Invalid("batching.max_queue_delay_us", absl::StrCat(delay_us),
                   absl::StrCat("0 to ", kMaxQueueDelayUs));
  }
  return absl::OkStatus();
}

absl::Status CheckParameterNames(const v1::ModelConfig& config) {
  const std::vector<ExpectedParameter> expected = ExpectedParameters(config);
  const auto known = [&expected](absl::string_view name) {
    return std::any_of(expected.begin(), expected.end(),
                       [name](const ExpectedParameter& wanted) { return name == wanted.name; });
  };
  const std::string names = absl::StrJoin(
      expected, ", ", [](std::string* out, const auto& wanted) { out->append(wanted.name); });
  const std::string wanted = expected.empty() ? "none: the operation takes no parameters" : names;
  const std::string& prefix = config.parameter_prefix();
  if (!prefix.empty() && expected.empty()) {
    return Invalid("parameter_prefix", Printable(prefix, 64), wanted);
  }
  if (prefix.size() > kMaxParameterNameBytes || !IsUtf8(prefix)) {
    return Invalid("parameter_prefix", Printable(prefix, 32), kNameWish);
  }
  absl::flat_hash_set<absl::string_view> taken;
  for (const ExpectedParameter& parameter : expected) {
    const auto named = config.parameter_names().find(parameter.name);
    absl::string_view name = parameter.name;
    if (named != config.parameter_names().end()) name = named->second;
    if (name.empty() || name.size() > kMaxParameterNameBytes || !IsUtf8(name)) {
      return Invalid(absl::StrCat("parameter_names: ", parameter.name),
                     absl::StrCat("\"", Printable(name, 32), "\""), kNameWish);
    }
    if (!taken.insert(name).second) {
      return Invalid(absl::StrCat("parameter_names: ", parameter.name), Printable(name, 32),
                     "a tensor of its own for each parameter");
    }
  }
  for (const auto& [name, value] : config.parameter_names()) {
    if (!known(name)) return Invalid("parameter_names", Printable(name, 32), wanted);
  }
  return absl::OkStatus();
}

norm::Activation ToKernel(v1::Activation activation) {
  switch (activation) {
    case v1::RELU: return norm::Activation::kRelu;
    case v1::LEAKY_RELU: return norm::Activation::kLeakyRelu;
    case v1::SILU: return norm::Activation::kSilu;
    case v1::GELU_ERF: return norm::Activation::kGeluErf;
    case v1::GELU_TANH: return norm::Activation::kGeluTanh;
    default: return norm::Activation::kNone;
  }
}

// `affine` of the operations where it is true when absent.
template <typename Operation>
bool IsAffine(const Operation& operation) {
  return !operation.has_affine() || operation.affine();
}

template <typename Operation>
double Eps(const Operation& operation, double absent = kDefaultEps) {
  return operation.has_eps() ? operation.eps() : absent;
}

// Of the type in which PyTorch computes the statistics of such inputs.
double MachineEpsilon(norm::DType dtype) {
  return dtype == norm::DType::kFloat64 ? std::numeric_limits<double>::epsilon()
                                        : std::numeric_limits<float>::epsilon();
}

std::int64_t Elements(const v1::ModelConfig& config) {
  std::int64_t product = 1;
  for (const std::int64_t dim : NormalizedShape(config)) product *= dim;
  return product;
}

}  // namespace

absl::StatusOr<v1::ModelConfig> ReadModelConfig(InputFile& file) {
  std::string text(static_cast<std::size_t>(file.size_bytes()), '\0');
  const absl::Status read =
      file.Read(0, absl::MakeSpan(reinterpret_cast<std::byte*>(text.data()), text.size()));
  if (!read.ok()) return read;
  absl::StatusOr<v1::ModelConfig> config = ParseModelConfig(text);
  if (!config.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(file.name(), ": ", config.status().message()));
  }
  return config;
}

absl::Status CheckModelConfig(const v1::ModelConfig& config) {
  for (const absl::Status& status :
       {CheckOperation(config), CheckDtypes(config), CheckLayoutAndActivation(config),
        CheckBatching(config.batching())}) {
    if (!status.ok()) return status;
  }
  if (absl::Status status = CheckParameterNames(config); !status.ok()) return status;
  if (!IsUtf8(config.description())) {
    return Invalid("description", Printable(config.description(), 32), "valid UTF-8");
  }
  return absl::OkStatus();
}

bool TakesDType(const v1::ModelConfig& config, norm::DType dtype) {
  return !config.has_linear_norm() || norm::IsLinearNormDType(dtype);
}

Shape ParameterShape(const v1::ModelConfig& config) {
  const std::vector<std::int64_t> normalized = NormalizedShape(config);
  // The dimensions are checked: their product fits.
  if (!normalized.empty()) return Shape::Create(normalized).value_or(Shape());
  return Shape::Create({MakeSpec(config, norm::DType::kFloat32).channels}).value_or(Shape());
}

std::vector<ExpectedParameter> ExpectedParameters(const v1::ModelConfig& config) {
  using Role = ExpectedParameter::Role;
  // The dimensions are checked: their product fits.
  const auto shape = [](const std::vector<std::int64_t>& dims) {
    return Shape::Create(dims).value_or(Shape());
  };
  if (config.has_linear_norm()) {
    const v1::LinearNorm& op = config.linear_norm();
    std::vector<ExpectedParameter> expected;
    expected.push_back(
        {"linear.weight", Role::kLinearWeight, true, shape({op.out_features(), op.in_features()})});
    if (!op.has_bias() || op.bias()) {
      expected.push_back({"linear.bias", Role::kLinearBias, true, shape({op.out_features()})});
    }
    return expected;
  }
  bool weight = false;
  bool bias = false;
  bool running = false;
  switch (config.operation_case()) {
    case v1::ModelConfig::kInstanceNorm:
      weight = bias = config.instance_norm().affine();
      running = config.instance_norm().use_running_stats();
      break;
    case v1::ModelConfig::kGroupNorm: weight = bias = IsAffine(config.group_norm()); break;
    case v1::ModelConfig::kLayerNorm: weight = bias = IsAffine(config.layer_norm()); break;
    case v1::ModelConfig::kRmsNorm: weight = IsAffine(config.rms_norm()); break;
    case v1::ModelConfig::kBatchNorm:
      weight = bias = IsAffine(config.batch_norm());
      running = true;
      break;
    case v1::ModelConfig::kLinearNorm:
    case v1::ModelConfig::OPERATION_NOT_SET: break;
  }
  const Shape each = ParameterShape(config);
  std::vector<ExpectedParameter> expected;
  if (weight) expected.push_back({"weight", Role::kGamma, !bias, each});
  if (bias) expected.push_back({"bias", Role::kBeta, false, each});
  if (running) {
    expected.push_back({"running_mean", Role::kMean, true, each});
    expected.push_back({"running_var", Role::kVariance, true, each});
  }
  return expected;
}

norm::NormSpec MakeSpec(const v1::ModelConfig& config, norm::DType dtype) {
  norm::NormSpec spec;
  switch (config.operation_case()) {
    case v1::ModelConfig::kInstanceNorm:
      spec = norm::InstanceNormSpec(config.instance_norm().channels(), dtype);
      if (config.instance_norm().use_running_stats()) spec.statistics = norm::Statistics::kGiven;
      spec.eps = Eps(config.instance_norm());
      break;
    case v1::ModelConfig::kGroupNorm:
      spec =
          norm::GroupNormSpec(config.group_norm().channels(), config.group_norm().groups(), dtype);
      spec.eps = Eps(config.group_norm());
      break;
    case v1::ModelConfig::kLayerNorm:
      spec = norm::LayerNormSpec(Elements(config), dtype);
      spec.eps = Eps(config.layer_norm());
      break;
    case v1::ModelConfig::kRmsNorm:
      spec = norm::RmsNormSpec(Elements(config), dtype);
      spec.eps = Eps(config.rms_norm(), MachineEpsilon(dtype));
      break;
    case v1::ModelConfig::kBatchNorm:
      spec = norm::BatchNormSpec(config.batch_norm().channels(), dtype);
      spec.eps = Eps(config.batch_norm());
      break;
    case v1::ModelConfig::kLinearNorm:
      spec = norm::LayerNormSpec(config.linear_norm().out_features(), dtype);
      spec.eps = Eps(config.linear_norm());
      break;
    case v1::ModelConfig::OPERATION_NOT_SET: break;
  }
  spec.layout = config.layout() == v1::CHANNELS_LAST ? norm::Layout::kChannelsLast
                                                     : norm::Layout::kChannelsFirst;
  spec.activation = ToKernel(config.activation());
  if (config.has_leaky_slope()) spec.leaky_slope = config.leaky_slope();
  return spec;
}

std::vector<std::int64_t> NormalizedShape(const v1::ModelConfig& config) {
  if (config.has_layer_norm()) {
    const auto& dims = config.layer_norm().normalized_shape();
    return {dims.begin(), dims.end()};
  }
  if (config.has_rms_norm()) {
    const auto& dims = config.rms_norm().normalized_shape();
    return {dims.begin(), dims.end()};
  }
  return {};
}

}  // namespace normd
