#include "server/accept/authorizer.h"

#include <algorithm>
#include <chrono>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/printable.h"
#include "base/retry_after.h"

namespace normd {
namespace {

constexpr std::size_t kMaxNameShown = 32;  // Bytes of a model's name that an error repeats.

absl::string_view NameOf(const AskedCall& call) {
  if (!call.caller.ok() || *call.caller == nullptr) return "";
  return (*call.caller)->identity.name;
}

// The identity is known, but lacks the right.
absl::Status WithoutRight(const Identity& identity, const std::string& what) {
  if (identity.anonymous) {
    return absl::UnauthenticatedError(absl::StrCat(
        "without a token or a client certificate a call has no right to ", what, " here"));
  }
  return absl::PermissionDeniedError(
      absl::StrCat("identity \"", identity.name, "\" has no right to ", what));
}

absl::Status TooOften(const Identity& identity, Duration wait) {
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(wait).count();
  absl::Status status = absl::ResourceExhaustedError(
      absl::StrCat("requests per second: identity \"", identity.name, "\" may have ",
                   identity.limits.rate.per_second, ", retry in ", ms, " ms"));
  SetRetryAfter(wait, status);
  return status;
}

}  // namespace

Duration RetryAfter(const absl::Status& status, Duration otherwise) {
  // At least the usual time: a client that has used up its rate must not return after a
  // microsecond.
  return std::max(RetryAfterOf(status).value_or(otherwise), otherwise);
}

Recognised Authorizer::Recognise(const PeerCredentials& credentials) const {
  if (options_.access == nullptr) return nullptr;
  return options_.access->Recognise(credentials);
}

absl::Status Authorizer::Denied(const AskedCall& call, Right right, absl::string_view model,
                                const absl::Status& why) const {
  if (options_.audit != nullptr) {
    options_.audit->Write({AuditRecord::Event::kDenied, NameOf(call), Name(right), call.method,
                           model, call.peer, call.request_id, why.code()});
  }
  return why;
}

absl::Status Authorizer::CheckRight(const AskedCall& call, Right right) const {
  if (!call.caller.ok()) return Denied(call, right, "", call.caller.status());
  if (right == Right::kAdmin && options_.admin == AdminCalls::kNone) {
    return Denied(call, right, "",
                  absl::PermissionDeniedError("admin calls are switched off (--admin)"));
  }
  if (right == Right::kAdmin && options_.admin == AdminCalls::kOfAdminListener &&
      !call.by_admin_listener) {
    return Denied(
        call, right, "",
        absl::PermissionDeniedError(
            "admin calls are taken at the server's admin address alone (--admin_listen)"));
  }
  const Principal* const principal = call.caller->get();
  if (principal == nullptr || principal->identity.rights.Include(right)) return absl::OkStatus();
  return Denied(call, right, "",
                WithoutRight(principal->identity, absl::StrCat("calls of \"", Name(right), "\"")));
}

absl::Status Authorizer::Check(const AskedCall& call, Right right) const {
  if (absl::Status status = CheckRight(call, right); !status.ok()) return status;
  const Principal* const principal = call.caller->get();
  if (principal == nullptr || right == Right::kHealth) return absl::OkStatus();
  const Duration wait =
      principal->account->rate.Take(principal->identity.limits.rate, clock_.Now());
  return wait > Duration(0) ? TooOften(principal->identity, wait) : absl::OkStatus();
}

absl::Status Authorizer::CheckModel(const AskedCall& call, Right right,
                                    absl::string_view model) const {
  if (!call.caller.ok()) return Denied(call, right, model, call.caller.status());
  const Principal* const principal = call.caller->get();
  if (principal == nullptr || principal->identity.rights.IncludeModel(right, model)) {
    return absl::OkStatus();
  }
  return Denied(
      call, right, model,
      WithoutRight(principal->identity, absl::StrCat("calls of \"", Name(right), "\" with model \"",
                                                     Printable(model, kMaxNameShown), "\"")));
}

void Authorizer::Record(const AskedCall& call, Right right, absl::string_view model,
                        const CallEnd& end) const noexcept {
  if (call.caller.ok() && *call.caller != nullptr) {
    (*call.caller)->account->metrics->RecordCall(end.code, end.input_bytes);
  } else if (!call.caller.ok() && options_.access != nullptr) {
    options_.access->nobody().RecordCall(end.code, end.input_bytes);
  }
  const bool denied = end.code == absl::StatusCode::kPermissionDenied ||
                      end.code == absl::StatusCode::kUnauthenticated;
  if (right != Right::kAdmin || denied || options_.audit == nullptr) return;
  options_.audit->Write({AuditRecord::Event::kAdminCall, NameOf(call), Name(right), call.method,
                         model, call.peer, call.request_id, end.code});
}

}  // namespace normd
