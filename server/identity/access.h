// Identities of callers: the current policy and tokens, read again when their files change.

#ifndef NORMD_SERVER_IDENTITY_ACCESS_H_
#define NORMD_SERVER_IDENTITY_ACCESS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "server/callers/callers.h"
#include "server/callers/weak_table.h"
#include "server/identity/identity.h"
#include "server/identity/policy.h"
#include "server/identity/private_file.h"
#include "server/identity/rate_limit.h"
#include "server/identity/tokens.h"
#include "server/metrics/metrics.h"

namespace normd {

// What an identity has of the server, whichever policy holds.
struct Account {
  const std::string name;            // The identity's.
  const std::shared_ptr<Peer> peer;  // What its calls hold of the budgets. shared: as any peer.
  const std::shared_ptr<IdentityMetrics> metrics;  // shared: see Metrics::ForIdentity.
  RateLimit rate{};
};

// An identity of the policy that held when its call came. Immutable but for its account.
struct Principal {
  const Identity& identity;
  const std::shared_ptr<Account> account;  // shared: with the policies before and after.
};

// One policy with one table of tokens. Immutable.
class AccessState {
 public:
  using AccountOf = absl::FunctionRef<std::shared_ptr<Account>(const Identity&)>;
  AccessState(Policy policy, TokenTable tokens, AccountOf account_of);
  AccessState(const AccessState&) = delete;
  AccessState& operator=(const AccessState&) = delete;

  // The call's identity, by the first of these that it has: a token, a certificate's URI, its DNS
  // name, a unix socket; then anonymous. Null: nobody's. A token that is none of the server's is
  // nobody's, whatever the call has beside it.
  const Principal* Recognise(const PeerCredentials& credentials) const;

  const Policy& policy() const { return policy_; }
  const TokenTable& tokens() const { return tokens_; }
  // For the log: names of tokens that the policy does not know, and those that it knows of which
  // the tokens' file has none. Sorted.
  std::vector<std::string> UnusedTokens() const;
  std::vector<std::string> MissingTokens() const;

 private:
  const Principal* PrincipalOf(const Identity* identity) const;

  const Policy policy_;
  const TokenTable tokens_;
  std::vector<Principal> principals_;             // As policy_.identities().
  std::vector<const Principal*> of_token_names_;  // As tokens_.names(). Null: nobody's.
};

struct AccessFiles {
  std::string policy;
  std::string tokens;  // Empty: there are none.
};

// Thread-safe. CheckFiles is called by one thread at a time.
class Access {
 public:
  // Reads and checks both files. InvalidArgument and the errors of ReadPrivateFile, with the file's
  // path, what is wrong and what was wanted. `callers` and `metrics` outlive it.
  static absl::StatusOr<std::unique_ptr<Access>> Create(const AccessFiles& files, Callers& callers,
                                                        Metrics& metrics);

  // Takes one short lock, for the copy of a pointer. Unauthenticated, in the same words for all,
  // when the call is nobody's. shared: a call keeps the policy that it came under.
  absl::StatusOr<std::shared_ptr<const Principal>> Recognise(
      const PeerCredentials& credentials) const;

  // Reads the files again if they have changed, and takes them together or not at all: OK when
  // nothing changed or the new ones hold from now on. On an error the old ones hold. Logs one line
  // for each change, and one when an error begins, changes or ends. Never throws.
  absl::Status CheckFiles();

  std::shared_ptr<const AccessState> state() const;
  // For calls that are nobody's.
  IdentityMetrics& nobody() const { return *nobody_; }

 private:
  struct Read {
    PrivateFile policy;
    PrivateFile tokens;
  };

  Access(AccessFiles files, Callers& callers, Metrics& metrics);

  absl::StatusOr<Read> ReadFiles() const;
  absl::Status Take(Read read);
  std::shared_ptr<Account> AccountOf(const Identity& identity);
  absl::StatusOr<bool> Changed() const;
  absl::Status CheckFilesOrThrow();

  const AccessFiles files_;
  Callers& callers_;
  Metrics& metrics_;
  PolicyMetrics& policy_metrics_;
  const std::shared_ptr<IdentityMetrics> nobody_;  // shared: as an account's.
  WeakTable<Account> accounts_;                    // Those of some state that a call may have.
  // CheckFiles' own.
  Read read_;  // What holds.
  std::string last_error_;

  mutable Mutex mutex_;
  std::shared_ptr<const AccessState> state_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace normd

#endif  // NORMD_SERVER_IDENTITY_ACCESS_H_
