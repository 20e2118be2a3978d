#include "server/rpc/call_arrival.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/support/alloc.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/printable.h"

namespace normd {
namespace {

constexpr char kRequestId[] = "x-request-id";
constexpr char kTraceParent[] = "traceparent";
constexpr char kAuthorization[] = "authorization";

// Adds names from the certificate that the transport has verified, if it has.
void AddCertificate(const grpc_auth_context* context, PeerCredentials& credentials) {
  if (context == nullptr || grpc_auth_context_peer_is_authenticated(context) == 0) return;
  const auto add = [context](const char* property, auto& values) {
    grpc_auth_property_iterator next = grpc_auth_context_find_properties_by_name(context, property);
    while (const grpc_auth_property* found = grpc_auth_property_iterator_next(&next)) {
      values.emplace_back(found->value, found->value_length);
    }
  };
  add(GRPC_PEER_URI_PROPERTY_NAME, credentials.uris);
  add(GRPC_PEER_DNS_PROPERTY_NAME, credentials.dns_names);
}

// Its callers are of the server's own user, or root: see ConnectionLoop.
bool IsOfUnixSocket(grpc_call* call) {
  const std::unique_ptr<char, decltype(&gpr_free)> name(grpc_call_get_peer(call), gpr_free);
  return absl::StartsWith(name.get(), "unix:");
}

}  // namespace

RequestIds ReadRequestIds(const std::multimap<grpc::string_ref, grpc::string_ref>& metadata) {
  const auto value_of = [&metadata](const char* key) {
    // lower_bound, as find may return any of several.
    const auto entry = metadata.lower_bound(key);
    if (entry == metadata.end() || entry->first != key) return absl::string_view();
    return absl::string_view(entry->second.data(), entry->second.size());
  };
  return FitRequestIds(value_of(kRequestId), value_of(kTraceParent));
}

Recognised IdentityOf(grpc::CallbackServerContext& context, const AcceptEnvironment& environment) {
  if (environment.authorizer == nullptr) return nullptr;
  PeerCredentials credentials;
  const auto& metadata = context.client_metadata();
  const auto [first, last] = metadata.equal_range(kAuthorization);
  if (first != last) {
    // With several values it is unclear which is meant, so none counts.
    const bool one = std::next(first) == last;
    credentials.authorization =
        one ? absl::string_view(first->second.data(), first->second.size()) : absl::string_view();
    return environment.authorizer->Recognise(credentials);
  }
  if (context.c_call() == nullptr) return environment.authorizer->Recognise(credentials);
  credentials.own_user = IsOfUnixSocket(context.c_call());
  const std::unique_ptr<grpc_auth_context, decltype(&grpc_auth_context_release)> certificate(
      grpc_call_auth_context(context.c_call()), grpc_auth_context_release);
  AddCertificate(certificate.get(), credentials);
  return environment.authorizer->Recognise(credentials);
}

absl::Status TakeMetadata(const grpc::CallbackServerContext& context, Caller* caller,
                          const AcceptEnvironment& environment) {
  constexpr std::int64_t kEntryBytes = 32;  // RFC 9113, SETTINGS_MAX_HEADER_LIST_SIZE.
  constexpr std::size_t kMaxShownBytes = 64;
  const auto& metadata = context.client_metadata();
  std::int64_t bytes = 0;
  std::int64_t most = 0;
  grpc::string_ref largest;
  for (auto next = metadata.begin(); next != metadata.end();) {
    const grpc::string_ref key = next->first;
    std::int64_t of_key = 0;
    for (; next != metadata.end() && next->first == key; ++next) {
      of_key += static_cast<std::int64_t>(key.size() + next->second.size()) + kEntryBytes;
    }
    bytes += of_key;
    if (of_key > most) largest = key;
    most = std::max(most, of_key);
  }
  if (caller != nullptr) caller->delivered.AddMetadata(bytes);
  const std::int64_t wanted = environment.limits.max_metadata_bytes;
  if (bytes <= wanted) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("metadata: ", bytes, " bytes, \"",
                   Printable({largest.data(), largest.size()}, kMaxShownBytes), "\" alone ", most,
                   ", wanted at most ", wanted, " (--max_metadata_bytes)"));
}

absl::Status CheckPlainCall(grpc::CallbackServerContext& context, AcceptEnvironment& environment,
                            const PlainCall& call) {
  const std::shared_ptr<Caller> caller = CallerOf(context, environment.callers);
  if (absl::Status refused = TakeMetadata(context, caller.get(), environment); !refused.ok()) {
    return refused;
  }
  if (environment.authorizer == nullptr) return absl::OkStatus();
  const Recognised identity = IdentityOf(context, environment);
  const RequestIds ids = ReadRequestIds(context.client_metadata());
  AskedCall asked{identity, false, call.method, "", ids.request_id};
  if (caller != nullptr) {
    asked.by_admin_listener = caller->origin.admin_listener;
    asked.peer = caller->name;
  }
  absl::Status status = environment.authorizer->Check(asked, call.right);
  if (status.ok() && call.right == Right::kDescribe) {
    status = environment.authorizer->CheckModel(asked, call.right, call.model);
  }
  environment.authorizer->Record(asked, call.right, call.model, {status.code(), 0});
  return status;
}

// ServerContext::peer() would copy the name twice.
std::shared_ptr<Caller> CallerOf(grpc::CallbackServerContext& context, Callers& callers) {
  grpc_call* const call = context.c_call();
  if (call == nullptr) return nullptr;
  const std::unique_ptr<char, decltype(&gpr_free)> name(grpc_call_get_peer(call), gpr_free);
  return callers.Find(name.get());
}

TimePoint DeadlineOf(gpr_timespec deadline, const Clock& clock) {
  // Longer than a server lives, and within every clock's range.
  constexpr std::int64_t kFarSeconds = std::int64_t{365} * 24 * 3600;
  if (deadline.tv_sec == gpr_inf_future(deadline.clock_type).tv_sec) return kNever;
  const gpr_timespec left = gpr_time_sub(gpr_convert_clock_type(deadline, GPR_CLOCK_MONOTONIC),
                                         gpr_now(GPR_CLOCK_MONOTONIC));
  if (left.tv_sec > kFarSeconds) return kNever;
  if (left.tv_sec < -kFarSeconds) return clock.Now();
  return clock.Now() + std::chrono::seconds(left.tv_sec) + Duration(left.tv_nsec);
}

CallArrival ArrivalOf(grpc::CallbackServerContext& context, Method method,
                      AcceptEnvironment& environment) {
  CallArrival arrival;
  arrival.method = method;
  arrival.at = environment.clock.Now();
  arrival.caller = CallerOf(context, environment.callers);
  arrival.metadata = TakeMetadata(context, arrival.caller.get(), environment);
  arrival.identity = IdentityOf(context, environment);
  // gRPC's own form: the system clock's range ends 292 years from 1970, and a client's largest time
  // limit, 99999999 hours, overflows it.
  arrival.deadline = DeadlineOf(context.raw_deadline(), environment.clock);
  arrival.ids = ReadRequestIds(context.client_metadata());
  const RequestIds& ids = arrival.ids;
  if (!ids.request_id.empty()) context.AddTrailingMetadata(kRequestId, ids.request_id);
  if (!ids.traceparent.empty()) context.AddTrailingMetadata(kTraceParent, ids.traceparent);
  return arrival;
}

}  // namespace normd
