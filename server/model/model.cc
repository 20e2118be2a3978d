#include "server/model/model.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "operations/kernel_program.h"
#include "operations/operations.h"
#include "operations/parameters.h"
#include "server/model/config.h"
#include "wire/tensor_message.h"

namespace normd {

absl::StatusOr<std::shared_ptr<Model>> Model::Create(std::string name, std::int64_t version,
                                                     v1::ModelConfig config,
                                                     std::vector<Parameter> parameters,
                                                     std::shared_ptr<ModelMetrics> metrics) {
  if (absl::Status status = CheckModelConfig(config); !status.ok()) return status;
  absl::StatusOr<std::unique_ptr<const Operation>> operation = MakeOperation(config);
  if (!operation.ok()) return operation.status();
  return Create(std::move(name), version, std::move(config), *std::move(operation),
                std::move(parameters), std::move(metrics));
}

absl::StatusOr<std::shared_ptr<Model>> Model::Create(std::string name, std::int64_t version,
                                                     v1::ModelConfig config,
                                                     std::unique_ptr<const Operation> operation,
                                                     std::vector<Parameter> parameters,
                                                     std::shared_ptr<ModelMetrics> metrics) {
  const absl::StatusOr<BoundParameters> bound =
      BindParameters(config, operation->parameters(), parameters);
  if (!bound.ok()) return bound.status();
  std::shared_ptr<Model> model(new Model());
  model->name_ = std::move(name);
  model->version_ = version;
  model->program_ = std::make_shared<const KernelProgram>(operation->MakeProgram(*bound));
  model->operation_ = std::move(operation);
  model->config_ = std::move(config);
  model->parameters_ = std::move(parameters);
  model->metrics_ = std::move(metrics);
  return model;
}

std::shared_ptr<const Model> Model::WithConfig(const Model& model, v1::ModelConfig config) {
  std::shared_ptr<Model> made(new Model(model));
  made->config_ = std::move(config);
  return made;
}

bool Model::TakesDType(norm::DType dtype) const {
  const auto& listed = config_.dtypes();
  const bool in_list =
      listed.empty() || std::find(listed.begin(), listed.end(), ToProtocol(dtype)) != listed.end();
  return in_list && operation_->TakesDType(dtype);
}

absl::StatusOr<Geometry> Model::Check(absl::Span<const TensorType> inputs) const {
  const norm::DType dtype = inputs.front().dtype;
  const v1::DataType type = ToProtocol(dtype);
  const auto wrong = [&](absl::string_view wanted) {
    return absl::InvalidArgumentError(absl::StrCat(inputs.size() > 1 ? "input \"x\": " : "",
                                                   "dtype: ", v1::DataType_Name(type), ", wanted ",
                                                   wanted));
  };
  if (TakesDType(dtype)) return operation_->Check(inputs);
  if (config_.dtypes().empty()) return wrong(operation_->DTypesText());
  return wrong(absl::StrJoin(config_.dtypes(), " or ", [](std::string* out, int value) {
    out->append(v1::DataType_Name(static_cast<v1::DataType>(value)));
  }));
}

}  // namespace normd
