#include "client/verify/reference_model.h"

#include <fcntl.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/descriptor.h"
#include "base/file.h"
#include "client/verify/reference_program.h"
#include "google/protobuf/text_format.h"
#include "operations/kernel_program.h"
#include "operations/match_inputs.h"
#include "operations/operations.h"
#include "operations/parameters.h"

namespace normd::client {
namespace {

namespace fs = std::filesystem;

absl::StatusOr<v1::ModelConfig> ReadConfig(const std::string& path) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat(path, ": cannot open"));
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  v1::ModelConfig config;
  if (!google::protobuf::TextFormat::ParseFromString(text, &config)) {
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
