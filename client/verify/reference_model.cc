#include "client/verify/reference_model.h"

#include <fcntl.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/descriptor.h"
#include "base/file.h"
#include "google/protobuf/text_format.h"
#include "kernels/reference.h"
#include "kernels/segment_tensors.h"
#include "operations/match_inputs.h"
#include "operations/operations.h"
#include "operations/parameters.h"

namespace normd::client {

namespace {

using Elements = std::vector<std::vector<double>>;

absl::Status FromKernels(const norm::Status& status) {
  return status.ok() ? absl::OkStatus() : absl::InvalidArgumentError(status.message());
}

std::vector<double> Sums(const norm::NormSpec& spec, const norm::NormParams& params,
                         const norm::Segment& segment, std::size_t count) {
  std::vector<double> sums(count);
  for (std::size_t i = 0; i < count; ++i) {
    sums[i] = norm::NormalizedElement(spec, params, segment, static_cast<std::int64_t>(i));
  }
  return sums;
}

absl::StatusOr<Elements> Compute(const NormProgram& program, const Geometry& geometry,
                                 absl::Span<const ConstBytes> inputs) {
  const norm::NormSpec& spec = program.Spec(geometry.inputs.front().dtype);
  norm::Segment segment;
  segment.samples = geometry.samples;
  segment.spatial = geometry.spatial;
  segment.spatial_runs = geometry.spatial_runs;
  const std::vector<norm::SegmentInput> fields = norm::InputsOf(spec);
  for (std::size_t i = 0; segment.samples > 0 && i < fields.size(); ++i) {
    norm::SetInput(spec, fields[i], inputs[i].data(), static_cast<std::int64_t>(inputs[i].size()),
                   segment);
  }
  const auto count = static_cast<std::size_t>(segment.samples * spec.channels * segment.spatial);
  const auto rows = static_cast<std::size_t>(geometry.rows);
  std::vector<double> y(count);
  std::vector<double> mean(rows);
  std::vector<double> rstd(rows);
  const norm::Status status = norm::NormalizeReference(
      spec, program.params, segment, norm::ReferenceOutputs{y.data(), mean.data(), rstd.data()});
  if (!status.ok()) return FromKernels(status);
  std::vector<double> scales;
  if (spec.quantization_scale != norm::QuantizationScale::kStatic) {
    scales = norm::ReferenceScales(spec, segment, y.data());
    norm::DivideByScales(spec, segment, scales, y.data());
  } else if (spec.quantization != norm::Quantization::kNone) {
    for (double& element : y) element /= spec.output_scale;
  }
  Elements elements;
  for (const norm::SegmentOutput output : norm::OutputsOf(spec)) {
    switch (output) {
      case norm::SegmentOutput::kY: elements.push_back(std::move(y)); break;
      case norm::SegmentOutput::kResidualOut:
        elements.push_back(Sums(spec, program.params, segment, count));
        break;
      case norm::SegmentOutput::kScale: elements.push_back(std::move(scales)); break;
      case norm::SegmentOutput::kMean: elements.push_back(std::move(mean)); break;
      case norm::SegmentOutput::kRstd: elements.push_back(std::move(rstd)); break;
    }
  }
  return elements;
}

absl::StatusOr<Elements> Compute(const LinearNormProgram& program, const Geometry& geometry,
                                 absl::Span<const ConstBytes> inputs) {
  norm::LinearNormSpec spec = program.spec;
  spec.dtype = geometry.inputs.front().dtype;
  norm::LinearNormSegment segment;
  segment.x = inputs.front().data();
  segment.y = inputs.size() > 1 ? inputs[1].data() : nullptr;
  segment.samples = geometry.samples;
  std::vector<double> out(static_cast<std::size_t>(geometry.samples * spec.out_features));
  const norm::Status status = norm::LinearNormReference(spec, program.params, segment, out.data());
  if (!status.ok()) return FromKernels(status);
  return Elements{std::move(out)};
}

}  // namespace

absl::StatusOr<std::vector<std::vector<double>>> ComputeReference(
    const KernelProgram& program, const Geometry& geometry, absl::Span<const ConstBytes> inputs) {
  return std::visit([&](const auto& one) { return Compute(one, geometry, inputs); }, program);
}

namespace {

namespace fs = std::filesystem;

absl::StatusOr<v1::ModelConfig> ReadConfig(const std::string& path) {
  const std::optional<std::string> text = ReadWhole(path);
  if (!text) return absl::NotFoundError(absl::StrCat(path, ": cannot open"));
  v1::ModelConfig config;
  if (!google::protobuf::TextFormat::ParseFromString(*text, &config)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is no ModelConfig"));
  }
  return config;
}

absl::StatusOr<std::vector<Parameter>> ReadParameterFile(const v1::ModelConfig& config,
                                                         const ParameterRules& rules,
                                                         const std::string& path) {
  Descriptor descriptor(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!descriptor.valid()) return absl::NotFoundError(absl::StrCat(path, ": cannot open"));
  absl::StatusOr<normd::InputFile> file = normd::InputFile::Adopt(
      path, std::move(descriptor), std::numeric_limits<std::int64_t>::max());
  if (!file.ok()) return file.status();
  return ReadParameters(config, rules, *file);
}

absl::Status CheckBytes(const TensorView& input) {
  const absl::StatusOr<std::int64_t> bytes = TensorBytes(input.dtype, input.shape);
  if (!bytes.ok()) return bytes.status();
  if (*bytes == static_cast<std::int64_t>(input.bytes.size())) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("data: ", input.bytes.size(), " bytes, wanted ", *bytes));
}

bool Contains(absl::Span<const std::string> names, absl::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

absl::StatusOr<ReferenceModel> ReferenceModel::Load(const std::string& repository,
                                                    const std::string& name, std::int64_t version) {
  const fs::path folder = fs::path(repository) / name;
  const absl::StatusOr<v1::ModelConfig> config = ReadConfig(folder / "config.textproto");
  if (!config.ok()) return config.status();
  const auto operation = MakeOperation(*config);
  if (!operation.ok()) return operation.status();
  const ParameterRules& rules = (*operation)->parameters();
  if (rules.expected.empty()) return Create(*config, {});
  absl::StatusOr<std::vector<Parameter>> parameters =
      ReadParameterFile(*config, rules, folder / absl::StrCat(version) / "params.safetensors");
  if (!parameters.ok()) return parameters.status();
  return Create(*config, *std::move(parameters));
}

absl::StatusOr<ReferenceModel> ReferenceModel::Create(const v1::ModelConfig& config,
                                                      std::vector<Parameter> parameters) {
  absl::StatusOr<std::unique_ptr<const Operation>> operation = MakeOperation(config);
  if (!operation.ok()) return operation.status();
  const auto bound = BindParameters(config, (*operation)->parameters(), parameters);
  if (!bound.ok()) return bound.status();
  ReferenceModel model;
  model.program_ = std::make_shared<const KernelProgram>((*operation)->MakeProgram(*bound));
  model.operation_ = *std::move(operation);
  model.parameters_ = std::move(parameters);
  return model;
}

absl::StatusOr<std::vector<std::size_t>> ReferenceModel::Select(
    absl::Span<const std::string> wanted) const {
  const std::vector<TensorSignature>& outputs = operation_->signature().outputs;
  for (const std::string& name : wanted) {
    const bool known = std::any_of(outputs.begin(), outputs.end(),
                                   [&](const TensorSignature& one) { return one.name == name; });
    if (!known) return absl::InvalidArgumentError(absl::StrCat(name, ": the model gives none"));
  }
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const bool is_wanted =
        wanted.empty() ? !outputs[i].on_request : Contains(wanted, outputs[i].name);
    if (is_wanted) places.push_back(i);
  }
  return places;
}

absl::StatusOr<ReferenceModel::Plan> ReferenceModel::Check(
    absl::Span<const TensorSpec> inputs, absl::Span<const std::string> wanted) const {
  Plan plan;
  const auto name = [&](std::size_t i) -> absl::string_view { return inputs[i].name; };
  absl::Status matched =
      MatchInputs(operation_->signature().inputs, inputs.size(), name, plan.inputs);
  if (!matched.ok()) return matched;
  std::vector<TensorType> types;
  for (const std::size_t place : plan.inputs) {
    types.push_back({inputs[place].dtype, inputs[place].shape});
  }
  if (!operation_->TakesDType(types.front().dtype)) {
    return absl::InvalidArgumentError(absl::StrCat("dtype: ", norm::Name(types.front().dtype),
                                                   ", wanted ", operation_->DTypesText()));
  }
  absl::StatusOr<Geometry> geometry = operation_->Check(types);
  if (!geometry.ok()) return geometry.status();
  plan.geometry = *std::move(geometry);
  auto selected = Select(wanted);
  if (!selected.ok()) return selected.status();
  plan.outputs = *std::move(selected);
  const auto outputs = operation_->Outputs(types);
  for (const std::size_t place : plan.outputs) {
    plan.specs.push_back({std::string(operation_->signature().outputs[place].name),
                          outputs[place].dtype, outputs[place].shape});
  }
  if (plan.specs.size() == 1 && wanted.empty()) plan.specs.front().name.clear();
  return plan;
}

absl::StatusOr<std::vector<ReferenceOutput>> ReferenceModel::Compute(
    absl::Span<const NamedTensor> inputs, absl::Span<const std::string> wanted) const {
  std::vector<TensorSpec> specs;
  for (const NamedTensor& input : inputs) {
    specs.push_back({input.name, input.tensor.dtype, input.tensor.shape});
  }
  absl::StatusOr<Plan> plan = Check(specs, wanted);
  if (!plan.ok()) return plan.status();
  std::vector<ConstBytes> bytes;
  for (const std::size_t place : plan->inputs) {
    if (absl::Status status = CheckBytes(inputs[place].tensor); !status.ok()) return status;
    bytes.push_back(inputs[place].tensor.bytes);
  }
  auto elements = ComputeReference(*program_, plan->geometry, bytes);
  if (!elements.ok()) return elements.status();
  std::vector<ReferenceOutput> outputs;
  for (std::size_t i = 0; i < plan->outputs.size(); ++i) {
    outputs.push_back({std::move(plan->specs[i]), std::move((*elements)[plan->outputs[i]])});
  }
  return outputs;
}

absl::StatusOr<std::vector<TensorSpec>> ReferenceModel::Outputs(
    absl::Span<const TensorSpec> inputs, absl::Span<const std::string> wanted) const {
  absl::StatusOr<Plan> plan = Check(inputs, wanted);
  if (!plan.ok()) return plan.status();
  return std::move(plan->specs);
}

}  // namespace normd::client
