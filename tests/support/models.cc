#include "tests/support/models.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "google/protobuf/text_format.h"
#include "server/exec/backends.h"

namespace normd {
namespace {

[[noreturn]] void Die(const std::string& message) {
  std::fprintf(stderr, "test model: %s\n", message.c_str());
  std::abort();
}

}  // namespace

std::vector<Parameter> MakeParameters(const ParameterShapes& shapes) {
  std::vector<Parameter> parameters;
  for (const auto& [name, dims] : shapes) {
    Parameter& parameter = parameters.emplace_back();
    parameter.name = name;
    parameter.dtype = norm::DType::kFloat32;
    parameter.shape = *Shape::Create(dims);
    const std::int64_t count = parameter.shape.elements();
    const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(float);
    const std::shared_ptr<std::byte[]> data(
        static_cast<std::byte*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64)),
        [](std::byte* memory) { std::free(memory); });
    auto* const values = reinterpret_cast<float*>(data.get());
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
      // Different for each of them, so that a result shows it if they are exchanged.
      values[i] = 0.5F + 0.01F * static_cast<float>((i + 31 * parameters.size()) % 97);
    }
    parameter.data = data;
  }
  return parameters;
}

std::shared_ptr<const Model> MakeModel(const std::string& name, const std::string& config_text,
                                       std::shared_ptr<ModelMetrics> metrics,
                                       std::vector<Parameter> parameters, std::int64_t version) {
  v1::ModelConfig config;
  if (!google::protobuf::TextFormat::ParseFromString(config_text, &config)) Die(config_text);
  absl::StatusOr<std::shared_ptr<Model>> model =
      Model::Create(name, version, std::move(config), std::move(parameters), std::move(metrics));
  if (!model.ok()) Die(model.status().ToString());
  return *std::move(model);
}

std::shared_ptr<const Model> MakeModel(const std::string& name, const std::string& config_text,
                                       ModelMetrics& metrics, std::vector<Parameter> parameters,
                                       std::int64_t version) {
  return MakeModel(name, config_text,
                   std::shared_ptr<ModelMetrics>(std::shared_ptr<void>(), &metrics),
                   std::move(parameters), version);
}

std::shared_ptr<const Model> MakeRowModel(ModelMetrics& metrics, const std::string& batching,
                                          const std::string& name) {
  return MakeModel(name, "instance_norm { channels: 1 } batching { " + batching + " }", metrics);
}

std::shared_ptr<const Model> OnCpu(std::shared_ptr<const Model> model,
                                   const norm::cpu::Executor& kernels) {
  absl::StatusOr<std::unique_ptr<BackendState>> state = MakeCpuProgram(*model, kernels);
  if (!state.ok()) Die(state.status().ToString());
  // The test has made it, and it is not shared yet.
  const_cast<Model&>(*model).set_backend_state(*std::move(state));
  return model;
}

}  // namespace normd
