// The models that fuzzed calls ask for.

#ifndef NORMD_TESTS_SERVER_RPC_SCRIPT_MODELS_H_
#define NORMD_TESTS_SERVER_RPC_SCRIPT_MODELS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "server/model/registry.h"
#include "tests/support/counting_metrics.h"
#include "tests/support/fake_clock.h"

namespace normd::testing {

// One registry for all inputs of a fuzzer, loaded once, with the models
//
//   first     GroupNorm, 6 channels in 3 groups, channels first; "last" likewise, channels last
//   rows      LayerNorm over 8 features
//   residual  RMSNorm with a residual over 8 features: inputs x and residual
//   fused     a fused layer of 12 and 20 features: inputs x and y
//   styled    InstanceNorm over 2 channels with 3 styles: inputs x and style_index
class ScriptModels {
 public:
  static constexpr std::int64_t kMaxRequestBytes = 4096;

  static ScriptModels& Get();

  ModelRegistry& registry() { return registry_; }
  CountingMetrics& metrics() { return metrics_; }

 private:
  class NoBackend final : public ModelBackend {
   public:
    absl::StatusOr<std::unique_ptr<BackendState>> Prepare(const Model&) override { return nullptr; }
  };

  ScriptModels();
  std::string MakeRepository();

  FakeClock clock_;
  CountingMetrics metrics_;
  NoBackend backend_;
  std::string root_;
  ModelRegistry registry_;
};

}  // namespace normd::testing

#endif  // NORMD_TESTS_SERVER_RPC_SCRIPT_MODELS_H_
