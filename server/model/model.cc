#include "server/model/model.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/printable.h"
#include "server/model/config.h"
#include "server/model/linear_norm.h"
#include "server/model/parameters.h"
#include "server/model/safetensors.h"
#include "wire/data_type.h"

namespace normd {
namespace {

constexpr norm::DType kDTypes[] = {norm::DType::kFloat32, norm::DType::kFloat64,
                                   norm::DType::kFloat16, norm::DType::kBFloat16};

struct BoundParams {
  norm::NormParams norm;
  norm::LinearNormParams linear;
};

norm::ParamVector& Target(BoundParams& params, ExpectedParameter::Role role) {
  switch (role) {
    case ExpectedParameter::Role::kBeta: return params.norm.beta;
    case ExpectedParameter::Role::kMean: return params.norm.mean;
    case ExpectedParameter::Role::kVariance: return params.norm.variance;
    case ExpectedParameter::Role::kLinearWeight: return params.linear.weight;
    case ExpectedParameter::Role::kLinearBias: return params.linear.bias;
    case ExpectedParameter::Role::kGamma: break;
  }
  return params.norm.gamma;
}

// Leaves in `parameters` those that the config asks for, and points at them.
absl::StatusOr<BoundParams> Bind(const v1::ModelConfig& config,
                                 std::vector<Parameter>& parameters) {
  absl::flat_hash_set<absl::string_view> names;
  std::vector<TensorEntry> tensors;
  for (const Parameter& parameter : parameters) {
    if (!names.insert(parameter.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("parameter ", Printable(parameter.name, 64), ": twice"));
    }
    tensors.push_back(
        {parameter.name, std::string(SafetensorsName(parameter.dtype)), parameter.shape, 0, 0});
  }
  const absl::StatusOr<std::vector<MatchedParameter>> matches = MatchParameters(config, tensors);
  if (!matches.ok()) return matches.status();
  BoundParams params;
  std::vector<Parameter> used;
  for (const MatchedParameter& match : *matches) {
    const Parameter& parameter = parameters[match.tensor];
    Target(params, match.parameter.role) = {parameter.data.get(), parameter.dtype};
    used.push_back(parameter);
  }
  parameters = std::move(used);
  return params;
}

std::string Dims(int count) {
  return absl::StrCat(count, count == 1 ? " dimension" : " dimensions");
}

absl::Status CheckNotZero(const Shape& shape, int first, int last) {
  for (int i = first; i < last; ++i) {
    if (shape.dim(i) == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("shape[", i, "]: 0 in ", shape.ToString(), ", wanted at least 1"));
    }
  }
  return absl::OkStatus();
}

// [N, C, *] or [N, *, C]: the samples are N, the spatial elements the trailing dimensions.
absl::Status FitChannels(const norm::NormSpec& spec, const Shape& shape, Geometry& out) {
  const int rank = shape.rank();
  const bool channels_last = spec.layout == norm::Layout::kChannelsLast;
  if (rank < 2) {
    return absl::InvalidArgumentError(absl::StrCat("shape: ", shape.ToString(), " has ", Dims(rank),
                                                   ", wanted at least 2, ",
                                                   channels_last ? "[N, *, C]" : "[N, C, *]"));
  }
  const int channel_dim = channels_last ? rank - 1 : 1;
  if (shape.dim(channel_dim) != spec.channels) {
    return absl::InvalidArgumentError(absl::StrCat("shape[", channel_dim,
                                                   "]: ", shape.dim(channel_dim), " channels in ",
                                                   shape.ToString(), ", wanted ", spec.channels));
  }
  const int first = channels_last ? 1 : 2;
  const int last = channels_last ? rank - 1 : rank;
  out.samples = shape.dim(0);
  out.spatial = shape.Product(first, last);
  return CheckNotZero(shape, first, last);
}

// [*, normalized dimensions]: every leading index is a sample, and any of them may be zero.
absl::Status FitNormalizedShape(absl::Span<const std::int64_t> normalized, const Shape& shape,
                                Geometry& out) {
  const int leading = shape.rank() - static_cast<int>(normalized.size());
  const auto wanted = [normalized] {
    return absl::StrCat("[*, ", absl::StrJoin(normalized, ", "), "]");
  };
  if (leading < 0) {
    return absl::InvalidArgumentError(absl::StrCat("shape: ", shape.ToString(), " has ",
                                                   Dims(shape.rank()), ", wanted ", wanted()));
  }
  for (int i = leading; i < shape.rank(); ++i) {
    if (shape.dim(i) != normalized[static_cast<std::size_t>(i - leading)]) {
      return absl::InvalidArgumentError(absl::StrCat("shape[", i, "]: ", shape.dim(i), " in ",
                                                     shape.ToString(), ", wanted ", wanted()));
    }
  }
  out.samples = shape.Product(0, leading);
  out.spatial = 1;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<Model>> Model::Create(std::string name, std::int64_t version,
                                                     v1::ModelConfig config,
                                                     std::vector<Parameter> parameters,
                                                     std::shared_ptr<ModelMetrics> metrics) {
  const absl::Status status = CheckModelConfig(config);
  if (!status.ok()) return status;
  const absl::StatusOr<BoundParams> params = Bind(config, parameters);
  if (!params.ok()) return params.status();

  std::shared_ptr<Model> model(new Model());
  model->name_ = std::move(name);
  model->version_ = version;
  if (config.has_linear_norm()) model->linear_ = MakeLinearSpec(config);
  for (const norm::DType dtype : kDTypes) model->SpecFor(dtype) = MakeSpec(config, dtype);
  model->normalized_shape_ = NormalizedShape(config);
  model->config_ = std::move(config);
  model->parameters_ = std::move(parameters);
  model->host_params_ = params->norm;
  model->host_linear_params_ = params->linear;
  model->metrics_ = std::move(metrics);
  return model;
}

absl::Span<const absl::string_view> Model::input_names() const {
  static constexpr absl::string_view kNames[kMaxInputs] = {"x", "y"};
  const bool has_y = linear_ && linear_->epilogue.needs_y();
  return absl::MakeConstSpan(kNames, has_y ? 2 : 1);
}

Shape Model::OutputShape(Shape x) const {
  if (!linear_) return x;
  return LinearOutputShape(*linear_, x).value_or(Shape());  // Check has made it once.
}

absl::StatusOr<Geometry> Model::Check(absl::Span<const TensorType> inputs) const {
  const auto& [dtype, shape] = inputs.front();
  const v1::DataType type = ToProto(dtype);
  const auto& accepted = config_.dtypes();
  if (!accepted.empty() && std::find(accepted.begin(), accepted.end(), type) == accepted.end()) {
    const auto name = [](std::string* out, int value) {
      out->append(v1::DataType_Name(static_cast<v1::DataType>(value)));
    };
    return absl::InvalidArgumentError(absl::StrCat("dtype: ", v1::DataType_Name(type), ", wanted ",
                                                   absl::StrJoin(accepted, " or ", name)));
  }
  if (!TakesDType(config_, dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("dtype: ", v1::DataType_Name(type), ", wanted FLOAT32, FLOAT16 or BFLOAT16"));
  }
  if (linear_) return FitLinear(*linear_, inputs);
  const norm::NormSpec& spec = Spec(dtype);
  Geometry geometry;
  const absl::Status status = normalized_shape_.empty()
                                  ? FitChannels(spec, shape, geometry)
                                  : FitNormalizedShape(normalized_shape_, shape, geometry);
  if (!status.ok()) return status;
  // The product fits: there are no more groups than channels, and Shape bounds all elements.
  geometry.rows = geometry.samples * spec.groups;
  const std::optional<std::int64_t> bytes =
      CheckedMultiply(shape.elements(), static_cast<std::int64_t>(norm::SizeOf(dtype)));
  if (!bytes) {
    return absl::InvalidArgumentError(absl::StrCat("shape: ", shape.ToString(), " of ",
                                                   norm::Name(dtype), " has over 2^63 bytes"));
  }
  geometry.bytes = *bytes;
  geometry.input_bytes[0] = *bytes;
  return geometry;
}

absl::StatusOr<norm::DType> FromProto(v1::DataType dtype) {
  const DataTypeNames* type = FindDataType(&DataTypeNames::protocol, static_cast<int>(dtype));
  if (type != nullptr) return type->dtype;
  const std::string got = dtype == v1::DATA_TYPE_UNSPECIFIED
                              ? "missing"
                              : absl::StrCat(static_cast<int>(dtype), " is unknown");
  return absl::InvalidArgumentError(
      absl::StrCat("dtype: ", got, ", wanted FLOAT32, FLOAT64, FLOAT16 or BFLOAT16"));
}

v1::DataType ToProto(norm::DType dtype) {
  const DataTypeNames* type = FindDataType(&DataTypeNames::dtype, dtype);
  return static_cast<v1::DataType>(type == nullptr ? 0 : type->protocol);
}

}  // namespace normd
