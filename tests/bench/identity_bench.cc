// What authorization adds to a call: who calls, by a token among so many, by a certificate or
// without either, and whether that identity may use the model.

#include <benchmark/benchmark.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/accept/authorizer.h"
#include "server/metrics/metrics.h"

namespace normd {
namespace {

std::string TokenOf(std::int64_t i) {
  return absl::StrCat("a-token-of-the-usual-length-of-43-", i);
}

std::string LineOf(const std::string& name, const std::string& token) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  EVP_Digest(token.data(), token.size(), digest, &size, EVP_sha256(), nullptr);
  return absl::StrCat(name, " sha256:",
                      absl::BytesToHexString({reinterpret_cast<const char*>(digest), size}), "\n");
}

// As many identities, each with a token, a URI and a role of its own with 10 models and 3
// beginnings.
class Setup {
 public:
  explicit Setup(std::int64_t identities) {
    std::string policy;
    std::string tokens;
    for (std::int64_t i = 0; i < identities; ++i) {
      absl::StrAppend(&policy, "role { name: \"r", i, "\" ");
      for (int model = 0; model < 10; ++model) {
        absl::StrAppend(&policy, "infer: \"model_", i, "_", model, "\" ");
      }
      absl::StrAppend(&policy, "infer: \"team_", i, "_*\" infer: \"shared_*\" infer: \"x*\" }\n",
                      "identity { name: \"i", i, "\" role: \"r", i, "\" token: \"t", i,
                      "\" spiffe: \"spiffe://example.org/ns/prod/sa/client-", i,
                      "\" limits { requests_per_second: 1e9 } }\n");
      absl::StrAppend(&tokens, LineOf(absl::StrCat("t", i), TokenOf(i)));
    }
    std::string folder =
        (std::filesystem::temp_directory_path() / "identity_bench_XXXXXX").string();
    if (mkdtemp(folder.data()) == nullptr) std::abort();
    std::ofstream(folder + "/policy") << policy;
    std::ofstream(folder + "/tokens") << tokens;
    chmod((folder + "/tokens").c_str(), 0600);
    auto access = Access::Create({folder + "/policy", folder + "/tokens"}, callers_, *metrics_);
    std::filesystem::remove_all(folder);
    if (!access.ok()) std::abort();
    access_ = *std::move(access);
    authorizer_ = std::make_unique<Authorizer>(
        AuthorizerOptions{AdminCalls::kAll, access_.get(), nullptr}, clock_);
  }

  // What each call does: true if it may.
  bool MayInfer(const PeerCredentials& credentials, absl::string_view model) const {
    const Recognised caller = authorizer_->Recognise(credentials);
    const AskedCall call{caller, false, "Normalize", "ipv4:127.0.0.1:41858", ""};
    return authorizer_->Check(call, Right::kInfer).ok() &&
           authorizer_->CheckModel(call, Right::kInfer, model).ok();
  }

 private:
  SteadyClock clock_;
  Callers callers_;
  std::unique_ptr<Metrics> metrics_ = CreateMetrics({"bench", ""});
  std::unique_ptr<Access> access_;
  std::unique_ptr<Authorizer> authorizer_;
};

void Run(benchmark::State& state, const PeerCredentials& credentials, absl::string_view model) {
  static std::unique_ptr<Setup> setup;
  static std::int64_t identities = 0;
  if (state.thread_index() == 0 && identities != state.range(0)) {
    identities = state.range(0);
    setup = std::make_unique<Setup>(identities);
  }
  bool allowed = true;
  for (auto _ : state) allowed &= setup->MayInfer(credentials, model);
  if (!allowed) state.SkipWithError("refused");
}

void BM_ByToken(benchmark::State& state) {
  const std::string bearer = absl::StrCat("Bearer ", TokenOf(state.range(0) / 2));
  PeerCredentials credentials;
  credentials.authorization = bearer;
  Run(state, credentials, absl::StrCat("model_", state.range(0) / 2, "_5"));
}
BENCHMARK(BM_ByToken)->Arg(1)->Arg(10)->Arg(100)->Arg(1000)->Arg(5000);
BENCHMARK(BM_ByToken)->Arg(100)->Threads(2)->UseRealTime();

void BM_ByCertificate(benchmark::State& state) {
  const std::string uri =
      absl::StrCat("spiffe://example.org/ns/prod/sa/client-", state.range(0) / 2);
  PeerCredentials credentials;
  credentials.uris.push_back(uri);
  Run(state, credentials, "shared_group_norm");
}
BENCHMARK(BM_ByCertificate)->Arg(1)->Arg(1000)->Arg(5000);

}  // namespace
}  // namespace normd

BENCHMARK_MAIN();
