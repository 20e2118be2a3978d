// Models made in memory, without a repository.

#ifndef NORMD_TESTS_SUPPORT_MODELS_H_
#define NORMD_TESTS_SUPPORT_MODELS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/model/model.h"

namespace normd::norm::cpu {
class Executor;
}  // namespace normd::norm::cpu

namespace normd {

// Names and shapes.
using ParameterShapes = std::vector<std::pair<const char*, std::vector<std::int64_t>>>;

// Parameters of float32 values from 0.5 to 1.46.
std::vector<Parameter> MakeParameters(const ParameterShapes& shapes);

// Makes a model from a config in protobuf text format. Ends the test program when it is not valid.
std::shared_ptr<const Model> MakeModel(const std::string& name, const std::string& config_text,
                                       std::shared_ptr<ModelMetrics> metrics,
                                       std::vector<Parameter> parameters = {},
                                       std::int64_t version = 1);
// `metrics` outlives the model.
std::shared_ptr<const Model> MakeModel(const std::string& name, const std::string& config_text,
                                       ModelMetrics& metrics,
                                       std::vector<Parameter> parameters = {},
                                       std::int64_t version = 1);

// InstanceNorm of one channel without parameters: a tensor [N, 1, S] is N rows of S elements.
// `batching`: fields of BatchingConfig. `metrics` outlives the model.
std::shared_ptr<const Model> MakeRowModel(ModelMetrics& metrics, const std::string& batching = "",
                                          const std::string& name = "rows");

// For a registry whose models nobody computes.
class NoBackend final : public ModelBackend {
 public:
  absl::StatusOr<std::unique_ptr<BackendState>> Prepare(const Model&) override { return nullptr; }
};

// The model with what the CPU backend keeps of it. `kernels` outlives it.
std::shared_ptr<const Model> OnCpu(std::shared_ptr<const Model> model,
                                   const norm::cpu::Executor& kernels);

}  // namespace normd

#endif  // NORMD_TESTS_SUPPORT_MODELS_H_
