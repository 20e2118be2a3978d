#include "server/metrics/handles.h"

#include <iterator>

namespace normd {
namespace {

enum Outcome : std::size_t { kOk, kDenied, kLimited, kFailed, kOutcomeCount };
constexpr std::array<const char*, kOutcomeCount> kNames = {"ok", "denied", "limited", "failed"};
constexpr absl::string_view kRefusalNames[] = {"connections", "peer_connections", "descriptors"};
constexpr absl::string_view kEndingNames[] = {"handshake_timeout", "no_http2", "no_tls",
                                              "tls_version",       "oversize", "message_timeout",
                                              "transport_bytes"};
static_assert(std::size(kRefusalNames) == kConnectionRefusals);
static_assert(std::size(kEndingNames) == kConnectionEndings);
constexpr absl::string_view kPortNames[] = {"grpc", "http"};
static_assert(std::size(kPortNames) == kRequestPorts);

// By whether new files were taken.
constexpr absl::string_view kReloadNames[] = {"refused", "taken"};
constexpr absl::string_view kRegionPlaneNames[] = {"named", "descriptor", "device"};
constexpr absl::string_view kRegionMemoryNames[] = {"host", "device"};

Outcome OutcomeOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk: return kOk;
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated: return kDenied;
    case absl::StatusCode::kResourceExhausted: return kLimited;
    default: return kFailed;
  }
}

}  // namespace

absl::string_view ConnectionEndingName(ConnectionEnding why) {
  return kEndingNames[static_cast<std::size_t>(why)];
}

std::string RefusalStatusName(std::size_t refusal) {
  return refusal < kRefusalStatuses.size() ? std::to_string(kRefusalStatuses[refusal]) : "other";
}

void IdentityMetrics::RecordCall(absl::StatusCode code, std::int64_t input_bytes) {
  static_assert(kOutcomes == kOutcomeCount);
  cells_.Add(OutcomeOf(code), 1);
  if (input_bytes > 0) cells_.Add(kOutcomes, input_bytes);
}

void IdentityMetrics::Collect(absl::string_view identity, FamilyList& out) const {
  std::array<std::int64_t, kOutcomes> calls{};
  std::int64_t all = 0;
  for (std::size_t i = 0; i < kOutcomes; ++i) all += calls[i] = cells_.Sum(i);
  if (all == 0) return;
  for (std::size_t i = 0; i < kOutcomes; ++i) {
    out.Add(families::kIdentityCalls, {identity, kNames[i]}, static_cast<double>(calls[i]));
  }
  out.Add(families::kIdentityInputBytes, {identity}, static_cast<double>(cells_.Sum(kOutcomes)));
}

void ConnectionMetrics::RecordRefusedRequest(int status) {
  refused_requests_.Add(std::find(kRefusalStatuses.begin(), kRefusalStatuses.end(), status) -
                        kRefusalStatuses.begin());
}

void ConnectionMetrics::AddRefusedRequests(RequestRefusalCounts& counts) const {
  for (std::size_t i = 0; i < kRequestRefusals; ++i) {
    counts[i] += static_cast<std::int64_t>(refused_requests_.Get(i));
  }
}

void ConnectionMetrics::Collect(FamilyList& out) const {
  if (shown_.Get() == 0) return;
  const absl::string_view port = kPortNames[static_cast<std::size_t>(port_)];
  out.Add(families::kConnections, {port}, open_.Get());
  out.Add(families::kConnectionsLimit, {port}, limit_.Get());
  out.Add(families::kConnectionsAccepted, {port}, accepted_.Get());
  for (std::size_t i = 0; i < std::size(kRefusalNames); ++i) {
    out.Add(families::kConnectionsRefused, {port, kRefusalNames[i]}, refused_.Get(i));
  }
  for (std::size_t i = 0; i < std::size(kEndingNames); ++i) {
    out.Add(families::kConnectionsEnded, {port, kEndingNames[i]}, ended_.Get(i));
  }
  if (port_ == RequestPort::kGrpc) {
    out.Add(families::kUndeliveredBytes, {}, undelivered_bytes_.Get());
    return;
  }
  for (std::size_t i = 0; i < kRequestRefusals; ++i) {
    out.Add(families::kRequestsRefused, {RefusalStatusName(i)}, refused_requests_.Get(i));
  }
}

void RegionMetrics::Collect(FamilyList& out) const {
  regions_.Collect(families::kSharedRegions, kRegionPlaneNames, out);
  bytes_.Collect(families::kSharedRegionBytes, kRegionPlaneNames, out);
  refused_.Collect(families::kSharedRegionsRefused, {"off", "name", "file", "device", "limit"},
                   out);
  out.Add(families::kSharedConnections, {}, connections_.Get());
  connections_ended_.Collect(families::kSharedConnectionsEnded, {"no_region", "user"}, out);
  out.Add(families::kSharedLockedBytes, {}, locked_bytes_.Get());
  not_locked_.Collect(families::kSharedRegionsNotLocked, {"limit", "driver", "late"}, out);
  out.Add(families::kSharedRegionsBroken, {}, broken_.Get());
  for (std::size_t i = 0; i < kRegionMemories; ++i) {
    const absl::string_view memory = kRegionMemoryNames[i];
    out.Add(families::kSharedTensorBytes, {"in", memory},
            static_cast<double>(tensor_bytes_.Sum(2 * i)));
    out.Add(families::kSharedTensorBytes, {"out", memory},
            static_cast<double>(tensor_bytes_.Sum(2 * i + 1)));
  }
}

void RepositoryMetrics::Collect(FamilyList& out) const {
  out.Add(families::kModelVersions, {"loaded"}, loaded_.Get());
  out.Add(families::kModelVersions, {"failed"}, failed_.Get());
  out.Add(families::kModelLoadFailures, {}, failures_.Get());
  polls_.Collect(families::kRepositoryPolls, {"incomplete", "complete"}, out);
}

void TlsMetrics::Collect(FamilyList& out) const {
  const double not_after = not_after_.Get();
  if (not_after == 0) return;
  out.Add(families::kCertificateNotAfter, {}, not_after);
  reloads_.Collect(families::kCertificateReloads, kReloadNames, out);
}

void PolicyMetrics::Collect(FamilyList& out) const {
  if (shown_.Get() != 0) reloads_.Collect(families::kPolicyReloads, kReloadNames, out);
}

}  // namespace normd
