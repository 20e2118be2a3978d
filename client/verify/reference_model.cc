#include "client/verify/reference_model.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/verify/parameter_file.h"
#include "client/verify/reference_operations.h"
#include "google/protobuf/text_format.h"

namespace normd::client {
namespace {

namespace fs = std::filesystem;

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

// The places of the outputs that a response has.
absl::StatusOr<std::vector<std::size_t>> Select(absl::Span<const ReferenceSpec> outputs,
                                                absl::Span<const std::string> wanted) {
  std::vector<std::size_t> places;
  for (const std::string& name : wanted) {
    const bool known =
        std::any_of(outputs.begin(), outputs.end(),
                    [&](const ReferenceSpec& output) { return output.spec.name == name; });
    if (!known) return absl::InvalidArgumentError(absl::StrCat(name, ": the model gives none"));
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const bool is_wanted = wanted.empty() ? !outputs[i].on_request
                                          : std::find(wanted.begin(), wanted.end(),
                                                      outputs[i].spec.name) != wanted.end();
    if (is_wanted) places.push_back(i);
  }
  return places;
}

std::vector<const TensorSpec*> SpecsOf(absl::Span<const NamedTensor* const> inputs,
                                       std::vector<TensorSpec>& specs) {
  for (const NamedTensor* input : inputs) {
    specs.push_back({input->name, input->tensor.dtype, input->tensor.shape});
  }
  std::vector<const TensorSpec*> pointers;
  for (const TensorSpec& spec : specs) pointers.push_back(&spec);
  return pointers;
}

absl::Status CheckBytes(const TensorView& input) {
  const absl::StatusOr<std::int64_t> bytes = TensorBytes(input.dtype, input.shape);
  if (!bytes.ok()) return bytes.status();
  if (*bytes == static_cast<std::int64_t>(input.bytes.size())) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("data: ", input.bytes.size(), " bytes, wanted ", *bytes));
}

}  // namespace

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
  const auto operation = MakeReferenceOperation(config);
  if (!operation.ok()) return operation.status();
  std::map<std::string, Tensor> parameters;
  if ((*operation)->needs_parameters()) {
    auto read = ReadParameterFile(folder / absl::StrCat(version) / "params.safetensors");
    if (!read.ok()) return read.status();
    parameters = *std::move(read);
  }
  return Create(config, std::move(parameters));
}

absl::StatusOr<ReferenceModel> ReferenceModel::Create(const v1::ModelConfig& config,
                                                      std::map<std::string, Tensor> parameters) {
  absl::StatusOr<std::unique_ptr<ReferenceOperation>> operation = MakeReferenceOperation(config);
  if (!operation.ok()) return operation.status();
  auto kept = std::make_unique<const ReferenceParameters>(config, std::move(parameters));
  if (absl::Status status = (*operation)->Take(*kept); !status.ok()) return status;
  return ReferenceModel(*std::move(operation), std::move(kept));
}

ReferenceModel::ReferenceModel(std::unique_ptr<ReferenceOperation> operation,
                               std::unique_ptr<const ReferenceParameters> parameters)
    : input_names_(operation->input_names()),
      parameters_(std::move(parameters)),
      operation_(std::move(operation)) {}

absl::StatusOr<std::vector<ReferenceOutput>> ReferenceModel::Compute(
    absl::Span<const NamedTensor> inputs, absl::Span<const std::string> wanted) const {
  const auto matched = Match(input_names_, inputs);
  if (!matched.ok()) return matched.status();
  for (const NamedTensor* input : *matched) {
    if (absl::Status status = CheckBytes(input->tensor); !status.ok()) return status;
  }
  absl::StatusOr<std::vector<ReferenceOutput>> outputs = operation_->Compute(*matched);
  if (!outputs.ok()) return outputs;
  std::vector<TensorSpec> specs;
  const auto places = Select(operation_->Outputs(SpecsOf(*matched, specs)), wanted);
  if (!places.ok()) return places.status();
  std::vector<ReferenceOutput> selected;
  for (const std::size_t place : *places) selected.push_back(std::move((*outputs)[place]));
  if (selected.size() == 1 && wanted.empty()) selected.front().spec.name.clear();
  return selected;
}

absl::StatusOr<std::vector<TensorSpec>> ReferenceModel::Outputs(
    absl::Span<const TensorSpec> inputs, absl::Span<const std::string> wanted) const {
  const auto matched = Match(input_names_, inputs);
  if (!matched.ok()) return matched.status();
  std::vector<ReferenceSpec> outputs = operation_->Outputs(*matched);
  const auto places = Select(outputs, wanted);
  if (!places.ok()) return places.status();
  std::vector<TensorSpec> selected;
  for (const std::size_t place : *places) selected.push_back(std::move(outputs[place].spec));
  if (selected.size() == 1 && wanted.empty()) selected.front().name.clear();
  return selected;
}

}  // namespace normd::client
