// libFuzzer over the policy, the tokens' file and what a call brings as its authorization. Built
// with -DNORMD_FUZZ=ON (clang). The first byte of the input says which of the three the rest is.
//
//   identity_fuzzer -max_len=2048 corpus tests/server/identity/fuzzer_seeds

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/strings/string_view.h"
#include "google/protobuf/stubs/logging.h"
#include "server/identity/policy.h"
#include "server/identity/tokens.h"

namespace normd {
namespace {

void Expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "broken: %s\n", what);
  std::abort();
}

// Refused with a reason, or whole: every identity has rights that add up and can be asked.
void TryPolicy(absl::string_view text) {
  const absl::StatusOr<Policy> policy = Policy::Parse(text);
  if (!policy.ok()) {
    Expect(!policy.status().message().empty(), "a refusal says why");
    Expect(policy.status().message().size() < 1000, "in few words");
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
    Expect(table.status().message().size() < 300, "a refusal quotes no file");
    return;
  }
  // Nobody finds what SHA-256 gives these digests for.
  Expect(!table->Find(text).has_value(), "the file itself is no token");
  Expect(table->names().size() <= table->size(), "every name has a token");
}

void TryAuthorization(absl::string_view text) {
  const absl::StatusOr<absl::string_view> token = BearerToken(text);
  if (!token.ok()) return;
  Expect(token->size() >= kMinTokenBytes && token->size() <= kMaxTokenBytes, "of its length");
  Expect(text.find(*token) != absl::string_view::npos, "a part of what came");
}

}  // namespace
}  // namespace normd

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // Protobuf logs each text that is not UTF-8.
  static const google::protobuf::LogSilencer silencer;
  if (size == 0) return 0;
  const absl::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 3) {
    case 0: normd::TryPolicy(text); break;
    case 1: normd::TryTokens(text); break;
    default: normd::TryAuthorization(text); break;
  }
  return 0;
}
