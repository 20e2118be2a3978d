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
    absl::Span<const NamedTensor> inputs) const {
  const auto matched = Match(input_names_, inputs);
  if (!matched.ok()) return matched.status();
  for (const NamedTensor* input : *matched) {
    if (absl::Status status = CheckBytes(input->tensor); !status.ok()) return status;
  }
  return operation_->Compute(*matched);
}

absl::StatusOr<std::vector<TensorSpec>> ReferenceModel::Outputs(
    absl::Span<const TensorSpec> inputs) const {
  const auto matched = Match(input_names_, inputs);
  if (!matched.ok()) return matched.status();
  return operation_->Outputs(*matched);
}

}  // namespace normd::client
