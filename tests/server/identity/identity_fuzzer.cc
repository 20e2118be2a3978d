// The policy, the tokens' file, what a call brings as its authorization, and both files as the
// server reads them again. The first byte of the input says which of the four the rest is.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/stubs/logging.h"
#include "server/identity/access.h"
#include "server/identity/policy.h"
#include "server/identity/tokens.h"
#include "server/metrics/metrics.h"
#include "spdlog/spdlog.h"
#include "tests/fuzz/expect.h"

namespace normd::testing {
namespace {

constexpr std::size_t kMaxMessageBytes = 1000;

// Refused with a reason, or whole: every identity has rights that add up and can be asked.
void TryPolicy(absl::string_view text) {
  const absl::StatusOr<Policy> policy = Policy::Parse(text);
  if (!policy.ok()) {
    ExpectMessage(policy.status().message(), kMaxMessageBytes);
    return;
  }
  Expect(!policy->identities().empty(), "somebody may call");
  bool anonymous = false;
  for (const Identity& identity : policy->identities()) {
    Expect(!identity.name.empty() && identity.name.size() <= 64, "every identity has its name");
    Expect(identity.rights.Include(Right::kInfer) == !identity.rights.infer.empty(),
           "rights add up");
    for (const absl::string_view model : {absl::string_view(), text.substr(0, 100)}) {
      Expect(!identity.rights.IncludeModel(Right::kInfer, model) ||
                 identity.rights.IncludeModel(Right::kDescribe, model),
             "whoever may infer may have it described");
    }
    Expect(identity.limits.concurrent_calls >= 0 && identity.limits.bytes_in_flight >= 0 &&
               (identity.limits.rate.per_second == 0 || identity.limits.rate.burst >= 1),
           "limits are limits");
    anonymous |= identity.anonymous;
  }
  Expect(anonymous == (policy->anonymous() != nullptr), "who is anonymous is found");
}

void TryTokens(absl::string_view text) {
  const absl::StatusOr<TokenTable> table = TokenTable::Parse(text);
  if (!table.ok()) {
    ExpectMessage(table.status().message(), 300);
    return;
  }
  // To find a text with one of these SHA-256 digests is infeasible.
  Expect(!table->Find(text).has_value(), "the file itself is no token");
  Expect(table->names().size() <= table->size(), "every name has a token");
}

void TryAuthorization(absl::string_view text) {
  const absl::StatusOr<absl::string_view> token = BearerToken(text);
  if (!token.ok()) return;
  Expect(token->size() >= kMinTokenBytes && token->size() <= kMaxTokenBytes, "of its length");
  Expect(text.find(*token) != absl::string_view::npos, "a part of what came");
}

// A server's two files, of which one input after the other is the next content.
class Files {
 public:
  static Files& Get() {
    static Files* const files = new Files;
    return *files;
  }

  // Both are taken, or the state before stays as it was.
  void Take(absl::string_view policy, absl::string_view tokens) {
    const bool right = Policy::Parse(policy).ok() && TokenTable::Parse(tokens).ok();
    const auto before = access_->state();
    policy_.Write(policy);
    tokens_.Write(tokens);
    const absl::Status status = access_->CheckFiles();
    Expect(status.ok() == right, "files that are right, and no others, are taken",
           status.message());
    if (right) {
      taken_tokens_ = std::string(tokens);
    } else {
      ExpectMessage(status.message(), kMaxMessageBytes);
      Expect(access_->state() == before, "what is wrong leaves the old state");
    }
  }
  const Access& access() const { return *access_; }
  // The tokens' file as it was last taken.
  absl::string_view taken_tokens() const { return taken_tokens_; }

 private:
  Files() {
    spdlog::set_level(spdlog::level::off);
    policy_.Write(R"(role { name: "r" infer: "*" } identity { name: "i" role: "r" token: "t" })");
    auto access = Access::Create({policy_.path(), tokens_.path()}, callers_, metrics_);
    Expect(access.ok(), "the first files are right", access.status().message());
    access_ = *std::move(access);
  }

  MemoryFile policy_;
  MemoryFile tokens_;
  std::string taken_tokens_;
  Callers callers_;
  Metrics metrics_;
  std::unique_ptr<Access> access_;
};

const Identity* WhoIs(const Access& access, const PeerCredentials& credentials) {
  const auto principal = access.Recognise(credentials);
  return principal.ok() ? &(*principal)->identity : nullptr;
}

std::string HexDigest(absl::string_view token) {
  const Digest digest = Sha256(token);
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest.data()), digest.size()));
}

// Policy, tokens, a token that is none and a name, each but the last up to a zero byte. A token of
// the name "t" is added to the tokens.
void TryFiles(Script script) {
  const std::string token(kMinTokenBytes, 't');
  const absl::string_view policy_text = script.Until('\0');
  const std::string tokens = absl::StrCat("t sha256:", HexDigest(token), "\n", script.Until('\0'));
  Files& files = Files::Get();
  files.Take(policy_text, tokens);

  const std::shared_ptr<const AccessState> state = files.access().state();
  const Policy& policy = state->policy();
  PeerCredentials credentials;
  const absl::string_view wrong = script.Until('\0');
  const absl::string_view name = script.Rest();
  credentials.uris.push_back(name);
  credentials.dns_names.push_back(name);
  const Identity* wanted = policy.ByUri(name);
  if (wanted == nullptr) wanted = policy.ByDnsName(name);
  if (wanted == nullptr) wanted = policy.anonymous();
  Expect(WhoIs(files.access(), credentials) == wanted, "a certificate's names, then anonymous");
  const std::string bearer = absl::StrCat("Bearer ", token);
  if (!state->tokens().names().empty()) {
    credentials.authorization = bearer;
    Expect(WhoIs(files.access(), credentials) == policy.ByToken("t"), "a token comes first");
  }
  // One whose digest is in the file that holds is right.
  const std::string digests = absl::AsciiStrToLower(files.taken_tokens());
  const absl::StatusOr<absl::string_view> sent = BearerToken(wrong);
  if (sent.ok() && absl::StrContains(digests, HexDigest(*sent))) return;
  credentials.authorization = wrong;
  Expect(WhoIs(files.access(), credentials) == nullptr, "a wrong token is nobody's", wrong);
}

}  // namespace
}  // namespace normd::testing

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // Protobuf logs each text that is not UTF-8.
  static const google::protobuf::LogSilencer silencer;
  normd::testing::Script script(data, size);
  switch (script.Byte() % 4) {
    case 0: normd::testing::TryPolicy(script.Rest()); break;
    case 1: normd::testing::TryTokens(script.Rest()); break;
    case 2: normd::testing::TryAuthorization(script.Rest()); break;
    default: normd::testing::TryFiles(script); break;
  }
  return 0;
}
