// One identity of a policy: its rights and its limits.

#ifndef NORMD_SERVER_IDENTITY_IDENTITY_H_
#define NORMD_SERVER_IDENTITY_IDENTITY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/identity/model_patterns.h"
#include "server/identity/rate_limit.h"

namespace normd {

// Borrows; only read while it is judged. A transport fills in the parts that it has verified, and
// leaves out the rest.
struct PeerCredentials {
  // The subject alternative names of a client certificate that the transport has verified.
  absl::InlinedVector<absl::string_view, 2> uris;
  absl::InlinedVector<absl::string_view, 2> dns_names;
  // The value of `authorization`, as sent: "Bearer ...".
  std::optional<absl::string_view> authorization;
  // The caller is a process on this machine of the server's own user, or of root: the system
  // reports this about the other end of a unix socket, where no others are let in.
  bool own_user = false;
};

// The kinds of calls.
enum class Right {
  kHealth,    // Ask whether the server, or a model, can be used.
  kDescribe,  // Ask for a model's inputs and outputs.
  kInfer,     // Have a model compute.
  kObserve,   // Read the server's state: lists, statistics, settings, metrics, reflection.
  kAdmin,     // Change the state: load and unload.
};
inline constexpr std::size_t kRightCount = 5;
// "infer", for messages and the audit log.
absl::string_view Name(Right right);

struct IdentityLimits {
  Rate rate;
  std::int64_t concurrent_calls = 0;  // 0, here and below: no limit.
  std::int64_t bytes_in_flight = 0;
};

// The combined rights of an identity's roles. Immutable once it is shared between threads.
struct Rights {
  bool observe = false;
  bool admin = false;
  // One for each role that names models. shared: by all identities with the role.
  std::vector<std::shared_ptr<const ModelPatterns>> infer;

  // For kDescribe and kInfer: with any model at all; see IncludeModel.
  bool Include(Right right) const;
  // Whether `right`, which is kDescribe or kInfer, includes the model of this name. Takes the same
  // work whether or not the model exists.
  bool IncludeModel(Right right, absl::string_view model) const;
};

// Immutable.
struct Identity {
  std::string name;
  bool anonymous = false;
  Rights rights;
  IdentityLimits limits;
};

// Letters, digits, '_', '-', '.' and '@', 1 to 64 of them, beginning with a letter or a digit: fit
// for logs and metric labels. InvalidArgument shows the name, escaped and at most 32 characters of
// it, and what was wanted.
absl::Status CheckIdentityName(absl::string_view name);

}  // namespace normd

#endif  // NORMD_SERVER_IDENTITY_IDENTITY_H_
