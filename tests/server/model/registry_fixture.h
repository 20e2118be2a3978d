// A registry over a repository of RMSNorms, a backend that does what a test says, and a fake clock.

#ifndef NORMD_TESTS_SERVER_MODEL_REGISTRY_FIXTURE_H_
#define NORMD_TESTS_SERVER_MODEL_REGISTRY_FIXTURE_H_

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "operations/kernel_program.h"
#include "server/model/registry.h"
#include "tests/server/model/files.h"
#include "tests/support/fake_clock.h"

namespace normd {

// Runs `prepare` for each model; without it, succeeds.
class FakeBackend final : public ModelBackend {
 public:
  using Prepared = absl::StatusOr<std::unique_ptr<BackendState>>;
  Prepared Prepare(const Model& model) override {
    return prepare ? prepare(model) : Prepared(nullptr);
  }
  std::function<Prepared(const Model&)> prepare;
};

// The parameters' file of a model whose four weights are `value`.
inline std::string Weights(float value) {
  return testing::Safetensors({testing::FloatTensor("weight", std::vector<float>(4, value))});
}
inline float FirstWeight(const Model& model) {
  float value = 0;
  std::memcpy(&value, std::get<NormProgram>(model.program()).params.gamma.data, sizeof(value));
  return value;
}

class ModelRegistryTest : public ::testing::Test {
 protected:
  static constexpr char kConfig[] = "rms_norm { normalized_shape: 4 }";

  // A right model whose weights are `value`.
  void WriteModel(const std::string& name, int version, float value) {
    dir_.Write(name + "/config.textproto", kConfig);
    WriteWeights(name, version, Weights(value));
  }
  void WriteWeights(const std::string& name, int version, const std::string& content) {
    dir_.Write(absl::StrCat(name, "/", version, "/params.safetensors"), content);
  }
  ModelRegistry& registry() {
    if (registry_ == nullptr) {
      RegistryOptions options;
      options.roots = {dir_.path()};
      options.max_models = max_models_;
      options.on_change = [this](const std::string& name, bool loaded) {
        changes_.emplace_back(name, loaded);
        if (on_change_) on_change_();
      };
      registry_ = std::make_unique<ModelRegistry>(options, backend_, metrics_, clock_);
    }
    return *registry_;
  }
  // "name/version" of all that is known, "!" behind what is not loaded.
  std::vector<std::string> Known() {
    std::vector<std::string> known;
    for (const ModelStatus& status : registry().List()) {
      known.push_back(
          absl::StrCat(status.name, "/", status.version, status.model == nullptr ? "!" : ""));
    }
    return known;
  }
  std::string ErrorOf(const std::string& name, std::int64_t version = 0) {
    const auto status = registry().Get(name, version);
    return status.ok() ? std::string(status->error.message()) : status.status().ToString();
  }

  std::int64_t max_models_ = 10000;
  testing::TempFolder dir_;
  FakeBackend backend_;
  FakeClock clock_;
  Metrics metrics_;
  std::vector<std::pair<std::string, bool>> changes_;
  std::function<void()> on_change_;
  std::unique_ptr<ModelRegistry> registry_;
};

}  // namespace normd

#endif  // NORMD_TESTS_SERVER_MODEL_REGISTRY_FIXTURE_H_
