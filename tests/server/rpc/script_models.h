// What the fuzzers of calls share: models, messages that are cut, and what is checked.

#ifndef NORMD_TESTS_SERVER_RPC_SCRIPT_MODELS_H_
#define NORMD_TESTS_SERVER_RPC_SCRIPT_MODELS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/bytes.h"
#include "grpcpp/support/slice.h"
#include "server/accept/accept.h"
#include "server/accept/description.h"
#include "server/metrics/metrics.h"
#include "server/model/registry.h"
#include "server/rpc/message_codec.h"
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
  Metrics& metrics() { return metrics_; }

 private:
  class NoBackend final : public ModelBackend {
   public:
    absl::StatusOr<std::unique_ptr<BackendState>> Prepare(const Model&) override { return nullptr; }
  };

  ScriptModels();
  std::string MakeRepository();

  FakeClock clock_;
  Metrics metrics_;
  NoBackend backend_;
  std::string root_;
  ModelRegistry registry_;
};

// Views of `message` in memory of their own, cut after every `step` bytes.
class CutMessage {
 public:
  CutMessage(absl::string_view message, std::size_t step);
  absl::Span<const ConstBytes> views() const { return views_; }

 private:
  std::vector<std::unique_ptr<char[]>> memory_;
  std::vector<ConstBytes> views_;
};

// A slice in memory of its own and of exact size. `held`, which outlives it, counts those that are
// kept.
grpc::Slice CountedSlice(absl::string_view bytes, std::int64_t& held);

// The messages that a unary call, or a request of ModelStreamInfer, may bring.
enum class FuzzedProtocol { kNormalize, kInfer, kStreamInfer };
const MessageCodec& CodecOf(FuzzedProtocol protocol);

// Aborts unless a request is accepted with as many bytes as its shapes ask for.
void CheckAccepted(const AcceptedRequest& accepted, const RequestDescription& description);

}  // namespace normd::testing

#endif  // NORMD_TESTS_SERVER_RPC_SCRIPT_MODELS_H_
