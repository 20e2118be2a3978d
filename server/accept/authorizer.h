// The one check of whether a call is allowed, for every method of every service and for the paths
// of the metrics port.

#ifndef NORMD_SERVER_ACCEPT_AUTHORIZER_H_
#define NORMD_SERVER_ACCEPT_AUTHORIZER_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "server/accept/audit_log.h"
#include "server/identity/access.h"
#include "server/identity/identity.h"

namespace normd {

// Which calls of Right::kAdmin are accepted at all, before the caller's identity is considered.
enum class AdminCalls { kAll, kOfAdminListener, kNone };

struct AuthorizerOptions {
  AdminCalls admin = AdminCalls::kAll;
  const Access* access = nullptr;  // Null: no policy, and everybody may do everything.
  AuditLog* audit = nullptr;       // Null: none.
};

// Null within OK: there is no policy. Unauthenticated: the call has no identity.
// shared: a call keeps the policy under which it came.
using Recognised = absl::StatusOr<std::shared_ptr<const Principal>>;

// One call, as the authorizer sees it. Borrows.
struct AskedCall {
  const Recognised& caller;
  bool by_admin_listener = false;
  // For the audit log.
  absl::string_view method;
  absl::string_view peer;
  absl::string_view request_id;
};

struct CallEnd {
  absl::StatusCode code = absl::StatusCode::kOk;
  std::int64_t input_bytes = 0;  // As far as they were known.
};

// A refusal depends on the policy, the identity and the name that was asked for; neither its words
// nor its cost depend on which models there are. Thread-safe; never blocks.
class Authorizer {
 public:
  // All of them outlive it.
  Authorizer(const AuthorizerOptions& options, const Clock& clock)
      : options_(options), clock_(clock) {}

  Recognised Recognise(const PeerCredentials& credentials) const;

  // Once for each call, before anything of its message is looked at:
  //   nobody's call                                   Unauthenticated
  //   an admin call that is not taken (AdminCalls)    PermissionDenied
  //   without the right                               PermissionDenied; an anonymous identity's
  //                                                   Unauthenticated, for others may have it
  //   too many calls of the identity, but for health  ResourceExhausted, with RetryAfter
  // kInfer and kDescribe are right if they are with any model: CheckModel comes after.
  absl::Status Check(const AskedCall& call, Right right) const;
  // For kInfer and kDescribe, with a name as it was sent: PermissionDenied or Unauthenticated
  // likewise.
  absl::Status CheckModel(const AskedCall& call, Right right, absl::string_view model) const;

  // Records the end of a call: counts it with its identity, and writes an admin call's line of the
  // audit log unless a denial's line is already there.
  void Record(const AskedCall& call, Right right, absl::string_view model,
              const CallEnd& end) const noexcept;

 private:
  absl::Status CheckRight(const AskedCall& call, Right right) const;
  absl::Status Denied(const AskedCall& call, Right right, absl::string_view model,
                      const absl::Status& why) const;

  const AuthorizerOptions options_;
  const Clock& clock_;
};

// The time that the client of a refused call should wait, if the refusal says so: see
// Authorizer::Check.
Duration RetryAfter(const absl::Status& status, Duration otherwise);

}  // namespace normd

#endif  // NORMD_SERVER_ACCEPT_AUTHORIZER_H_
