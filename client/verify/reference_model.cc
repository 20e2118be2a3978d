#include "client/verify/reference_model.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/verify/parameter_file.h"
#include "google/protobuf/text_format.h"
#include "kernels/reference.h"

namespace normd::client {
namespace {

namespace fs = std::filesystem;

// Which of the parameters an operation uses.
struct Uses {
  bool weight = false;
  bool bias = false;
  bool running = false;
};

template <typename Operation>
bool AffineOf(const Operation& operation) {
  return !operation.has_affine() || operation.affine();
}

// Older servers send the slope in leaky_slope_float alone.
double LeakySlopeOf(const v1::ModelConfig& config) {
  if (config.has_leaky_slope()) return config.leaky_slope();
  return config.has_leaky_slope_float() ? static_cast<double>(config.leaky_slope_float())
                                        : norm::NormSpec().leaky_slope;
}

// The kernels' enums have the protocol's values by name, not by number.
norm::Activation ActivationOf(v1::Activation activation) {
  switch (activation) {
    case v1::RELU: return norm::Activation::kRelu;
    case v1::LEAKY_RELU: return norm::Activation::kLeakyRelu;
    case v1::SILU: return norm::Activation::kSilu;
    case v1::GELU_ERF: return norm::Activation::kGeluErf;
    case v1::GELU_TANH: return norm::Activation::kGeluTanh;
    default: return norm::Activation::kNone;
  }
}

Uses UsesOf(const v1::ModelConfig& config) {
  switch (config.operation_case()) {
    case v1::ModelConfig::kInstanceNorm:
      return {config.instance_norm().affine(), config.instance_norm().affine(),
              config.instance_norm().use_running_stats()};
    case v1::ModelConfig::kGroupNorm: {
      const bool affine = AffineOf(config.group_norm());
      return {affine, affine, false};
    }
    case v1::ModelConfig::kLayerNorm: {
      const bool affine = AffineOf(config.layer_norm());
      return {affine, affine, false};
    }
    case v1::ModelConfig::kRmsNorm: return {AffineOf(config.rms_norm()), false, false};
    case v1::ModelConfig::kBatchNorm: {
      const bool affine = AffineOf(config.batch_norm());
      return {affine, affine, true};
    }
    default: return {};
  }
}

// What the file calls a parameter.
std::string NameInFile(const v1::ModelConfig& config, const std::string& parameter) {
  const auto named = config.parameter_names().find(parameter);
  return config.parameter_prefix() +
         (named == config.parameter_names().end() ? parameter : named->second);
}

// torch.nn.RMSNorm without eps: of the type that the statistics are computed in.
double MachineEpsilon(norm::DType dtype) {
  return dtype == norm::DType::kFloat64 ? 0x1p-52 : 0x1p-23;
}

absl::StatusOr<norm::ParamVector> Pick(const std::map<std::string, Tensor>& parameters,
                                       const std::string& name, std::int64_t channels) {
  const auto it = parameters.find(name);
  if (it == parameters.end()) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": not among the parameters"));
  }
  const Tensor& tensor = it->second;
  if (tensor.shape().elements() != channels) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": shape ", tensor.shape().ToString(),
                                                   ", wanted ", channels, " elements"));
  }
  return norm::ParamVector{tensor.bytes().data(), tensor.dtype()};
}

// The inputs in the order of `names`. An only input needs no name.
template <typename Input>
absl::StatusOr<std::vector<const Input*>> Match(absl::Span<const std::string> names,
                                                absl::Span<const Input> inputs) {
  std::vector<const Input*> matched(names.size());
  for (const Input& input : inputs) {
    auto name = std::find(names.begin(), names.end(), input.name);
    if (names.size() == 1 && input.name.empty()) name = names.begin();
    if (name == names.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat(input.name, ": present, the model takes none"));
    }
    const Input*& place = matched[static_cast<std::size_t>(name - names.begin())];
    if (place != nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(*name, ": present twice, wanted once"));
    }
    place = &input;
  }
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (matched[i] != nullptr) continue;
    return absl::InvalidArgumentError(absl::StrCat(names[i], ": missing, the model takes one"));
  }
  return matched;
}

absl::Status CheckBytes(const TensorView& input) {
  const absl::StatusOr<std::int64_t> bytes = TensorBytes(input.dtype, input.shape);
  if (!bytes.ok()) return bytes.status();
  if (*bytes == static_cast<std::int64_t>(input.bytes.size())) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("data: ", input.bytes.size(), " bytes, wanted ", *bytes));
}

absl::Status FromKernels(const norm::Status& status) {
  return status.ok() ? absl::OkStatus() : absl::InvalidArgumentError(status.message());
}

}  // namespace

std::vector<std::string> InputNames(const v1::ModelConfig& config) {
  const v1::LinearNorm::Epilogue& epilogue = config.linear_norm().epilogue();
  if (epilogue.add() || epilogue.multiply()) return {"x", "y"};
  return {"x"};
}

absl::StatusOr<ReferenceModel> ReferenceModel::Load(const std::string& repository,
                                                    const std::string& name, std::int64_t version) {
  const fs::path folder = fs::path(repository) / name;
  const std::string config_path = folder / "config.textproto";
  std::ifstream file(config_path);
  if (!file) return absl::NotFoundError(absl::StrCat(config_path, ": cannot open"));
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  v1::ModelConfig config;
  if (!google::protobuf::TextFormat::ParseFromString(text, &config)) {
    return absl::InvalidArgumentError(absl::StrCat(config_path, ": is no ModelConfig"));
  }
  std::map<std::string, Tensor> parameters;
  const Uses uses = UsesOf(config);
  if (uses.weight || uses.bias || uses.running || config.has_linear_norm()) {
    auto read = ReadParameterFile(folder / absl::StrCat(version) / "params.safetensors");
    if (!read.ok()) return read.status();
    parameters = *std::move(read);
  }
  return Create(config, std::move(parameters));
}

absl::StatusOr<ReferenceModel> ReferenceModel::Create(const v1::ModelConfig& config,
                                                      std::map<std::string, Tensor> parameters) {
  ReferenceModel model;
  model.input_names_ = InputNames(config);
  model.parameters_ = std::move(parameters);
  if (config.has_linear_norm()) {
    if (absl::Status status = model.TakeLinear(config); !status.ok()) return status;
    return model;
  }
  if (absl::Status status = model.TakeOperation(config); !status.ok()) return status;
  Uses uses = UsesOf(config);
  // Of the two, a module with bias=False has only one.
  const bool has_weight = model.parameters_.contains(NameInFile(config, "weight"));
  const bool has_bias = model.parameters_.contains(NameInFile(config, "bias"));
  if (uses.weight && uses.bias && (has_weight || has_bias)) {
    uses.weight = has_weight;
    uses.bias = has_bias;
  }
  const std::pair<bool, std::pair<const char*, norm::ParamVector*>> wanted[] = {
      {uses.weight, {"weight", &model.params_.gamma}},
      {uses.bias, {"bias", &model.params_.beta}},
      {uses.running, {"running_mean", &model.params_.mean}},
      {uses.running, {"running_var", &model.params_.variance}},
  };
  for (const auto& [used, target] : wanted) {
    if (!used) continue;
    absl::StatusOr<norm::ParamVector> vector =
        Pick(model.parameters_, NameInFile(config, target.first), model.spec_.channels);
    if (!vector.ok()) return vector.status();
    *target.second = *vector;
  }
  if (absl::Status s = FromKernels(norm::ValidateSpec(model.spec_, model.params_)); !s.ok()) {
    return s;
  }
  return model;
}

absl::Status ReferenceModel::TakeLinear(const v1::ModelConfig& config) {
  const v1::LinearNorm& op = config.linear_norm();
  norm::LinearNormSpec spec;
  spec.in_features = op.in_features();
  spec.out_features = op.out_features();
  if (op.has_eps()) spec.eps = op.eps();
  spec.epilogue.add = op.epilogue().add();
  spec.epilogue.multiply = op.epilogue().multiply();
  spec.epilogue.activation = ActivationOf(config.activation());
  spec.epilogue.leaky_slope = static_cast<float>(LeakySlopeOf(config));
  const std::optional<std::int64_t> weights = CheckedMultiply(spec.in_features, spec.out_features);
  if (!weights) return absl::InvalidArgumentError("linear_norm: too many weights");
  const auto weight = Pick(parameters_, NameInFile(config, "linear.weight"), *weights);
  if (!weight.ok()) return weight.status();
  linear_params_.weight = *weight;
  if (!op.has_bias() || op.bias()) {
    const auto bias = Pick(parameters_, NameInFile(config, "linear.bias"), spec.out_features);
    if (!bias.ok()) return bias.status();
    linear_params_.bias = *bias;
  }
  linear_ = spec;
  return FromKernels(norm::ValidateLinearNorm(spec, linear_params_));
}

absl::Status ReferenceModel::TakeOperation(const v1::ModelConfig& config) {
  constexpr double kDefaultEps = 1e-5;
  // The type is the request's; any will do until then.
  constexpr norm::DType kAny = norm::DType::kFloat32;
  const auto eps = [](const auto& op) { return op.has_eps() ? op.eps() : kDefaultEps; };
  const auto normalized = [&](const auto& op) -> absl::StatusOr<std::int64_t> {
    const absl::StatusOr<Shape> shape = Shape::Create(
        std::vector<std::int64_t>(op.normalized_shape().begin(), op.normalized_shape().end()));
    if (!shape.ok()) return shape.status();
    normalized_shape_.assign(shape->dims().begin(), shape->dims().end());
    return shape->elements();
  };
  switch (config.operation_case()) {
    case v1::ModelConfig::kInstanceNorm:
      spec_ = norm::InstanceNormSpec(config.instance_norm().channels(), kAny);
      spec_.eps = eps(config.instance_norm());
      if (config.instance_norm().use_running_stats()) spec_.statistics = norm::Statistics::kGiven;
      break;
    case v1::ModelConfig::kGroupNorm:
      spec_ =
          norm::GroupNormSpec(config.group_norm().channels(), config.group_norm().groups(), kAny);
      spec_.eps = eps(config.group_norm());
      break;
    case v1::ModelConfig::kLayerNorm: {
      const absl::StatusOr<std::int64_t> elements = normalized(config.layer_norm());
      if (!elements.ok()) return elements.status();
      spec_ = norm::LayerNormSpec(*elements, kAny);
      spec_.eps = eps(config.layer_norm());
      break;
    }
    case v1::ModelConfig::kRmsNorm: {
      const absl::StatusOr<std::int64_t> elements = normalized(config.rms_norm());
      if (!elements.ok()) return elements.status();
      spec_ = norm::RmsNormSpec(*elements, kAny);
      spec_.eps = config.rms_norm().eps();
      machine_epsilon_ = !config.rms_norm().has_eps();
      break;
    }
    case v1::ModelConfig::kBatchNorm:
      spec_ = norm::BatchNormSpec(config.batch_norm().channels(), kAny);
      spec_.eps = eps(config.batch_norm());
      break;
    default: return absl::InvalidArgumentError("config: names no operation that can be verified");
  }
  spec_.activation = ActivationOf(config.activation());
  spec_.leaky_slope = LeakySlopeOf(config);
  if (config.layout() == v1::CHANNELS_LAST) spec_.layout = norm::Layout::kChannelsLast;
  return absl::OkStatus();
}

absl::StatusOr<norm::Segment> ReferenceModel::SegmentOf(const TensorView& x) const {
  const auto wrong = [&](const std::string& wanted) {
    return absl::InvalidArgumentError(
        absl::StrCat("shape: ", x.shape.ToString(), ", wanted ", wanted));
  };
  norm::Segment segment;
  segment.x = x.bytes.data();
  const int rank = x.shape.rank();
  if (!normalized_shape_.empty()) {
    const int leading = rank - static_cast<int>(normalized_shape_.size());
    if (leading < 0 || !std::equal(normalized_shape_.begin(), normalized_shape_.end(),
                                   x.shape.dims().begin() + leading)) {
      return wrong("the normalized dimensions at the end");
    }
    segment.samples = x.shape.Product(0, leading);
    return segment;
  }
  const bool last = spec_.layout == norm::Layout::kChannelsLast;
  if (rank < 2 || x.shape.dim(last ? rank - 1 : 1) != spec_.channels) {
    return wrong(absl::StrCat(last ? "[N, *, " : "[N, ", spec_.channels, last ? "]" : ", *]"));
  }
  segment.samples = x.shape.dim(0);
  segment.spatial = last ? x.shape.Product(1, rank - 1) : x.shape.Product(2, rank);
  return segment;
}

absl::StatusOr<std::vector<double>> ReferenceModel::ComputeLinear(const TensorView& x,
                                                                  const TensorView* y) const {
  norm::LinearNormSpec spec = *linear_;
  spec.dtype = x.dtype;
  const int rank = x.shape.rank();
  if (rank < 1 || x.shape.dim(rank - 1) != spec.in_features) {
    return absl::InvalidArgumentError(
        absl::StrCat("shape: ", x.shape.ToString(), ", wanted [*, ", spec.in_features, "]"));
  }
  const Shape shape = OutputShape(x.shape);
  if (y != nullptr && (y->dtype != x.dtype || !(y->shape == shape))) {
    return absl::InvalidArgumentError(absl::StrCat("y: ", norm::Name(y->dtype), " ",
                                                   y->shape.ToString(), ", wanted ",
                                                   norm::Name(x.dtype), " ", shape.ToString()));
  }
  norm::LinearNormSegment segment;
  segment.x = x.bytes.data();
  segment.y = y == nullptr ? nullptr : y->bytes.data();
  segment.samples = x.shape.Product(0, rank - 1);
  std::vector<double> out(static_cast<std::size_t>(shape.elements()));
  const norm::Status status = norm::LinearNormReference(spec, linear_params_, segment, out.data());
  if (!status.ok()) return FromKernels(status);
  return out;
}

Shape ReferenceModel::OutputShape(const Shape& x) const {
  if (!linear_ || x.rank() == 0) return x;
  std::vector<std::int64_t> dims(x.dims().begin(), x.dims().end());
  dims.back() = linear_->out_features;
  return Shape::Create(dims).value_or(Shape());
}

absl::StatusOr<std::vector<double>> ReferenceModel::ComputeNorm(const TensorView& x) const {
  const absl::StatusOr<norm::Segment> segment = SegmentOf(x);
  if (!segment.ok()) return segment.status();
  norm::NormSpec spec = spec_;
  spec.dtype = x.dtype;
  if (machine_epsilon_) spec.eps = MachineEpsilon(x.dtype);
  std::vector<double> out(static_cast<std::size_t>(x.shape.elements()));
  const norm::Status status = norm::NormalizeReference(spec, params_, *segment, out.data());
  if (!status.ok()) return FromKernels(status);
  return out;
}

absl::StatusOr<std::vector<ReferenceOutput>> ReferenceModel::Compute(
    absl::Span<const NamedTensor> inputs) const {
  const auto matched = Match(input_names_, inputs);
  if (!matched.ok()) return matched.status();
  for (const NamedTensor* input : *matched) {
    if (absl::Status status = CheckBytes(input->tensor); !status.ok()) return status;
  }
  const TensorView& x = matched->front()->tensor;
  const TensorView* y = matched->size() > 1 ? &(*matched)[1]->tensor : nullptr;
  absl::StatusOr<std::vector<double>> elements = linear_ ? ComputeLinear(x, y) : ComputeNorm(x);
  if (!elements.ok()) return elements.status();
  std::vector<ReferenceOutput> outputs;
  outputs.push_back({{"", x.dtype, OutputShape(x.shape)}, *std::move(elements)});
  return outputs;
}

absl::StatusOr<std::vector<TensorSpec>> ReferenceModel::Outputs(
    absl::Span<const TensorSpec> inputs) const {
  const auto matched = Match(input_names_, inputs);
  if (!matched.ok()) return matched.status();
  const TensorSpec& x = *matched->front();
  return std::vector<TensorSpec>{{"", x.dtype, OutputShape(x.shape)}};
}

}  // namespace normd::client
