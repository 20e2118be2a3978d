#include "server/rpc/probes.h"

#include <cstdint>

#include "absl/strings/strip.h"
#include "server/infer/infer_description.h"

namespace normd {
namespace {

constexpr int kTrue = 200;
constexpr int kFalse = 400;  // The protocol wants 4xx.
constexpr int kNotFound = 404;

struct PathRight {
  Right right = Right::kHealth;
  absl::string_view model;  // For kDescribe.
};

PathRight RightOfPath(absl::string_view path) {
  if (path == "/metrics" || path == "/" || path == "/status.json") return {Right::kObserve, ""};
  if (!absl::ConsumePrefix(&path, "/v2/models/")) return {};
  return {Right::kDescribe, path.substr(0, path.find('/'))};
}

int HttpStatusOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kUnauthenticated: return 401;
    case absl::StatusCode::kResourceExhausted: return 429;
    default: return 403;
  }
}

}  // namespace

int PathRefusal(const PathRequest& request, const Authorizer& authorizer) {
  PeerCredentials credentials;
  credentials.authorization = request.authorization;
  credentials.uris.assign(request.uris.begin(), request.uris.end());
  credentials.dns_names.assign(request.dns_names.begin(), request.dns_names.end());
  const Recognised identity = authorizer.Recognise(credentials);
  const PathRight wanted = RightOfPath(request.path);
  const AskedCall call{identity, false, "HTTP", request.peer, ""};
  absl::Status status = authorizer.Check(call, wanted.right);
  if (status.ok() && wanted.right == Right::kDescribe) {
    status = authorizer.CheckModel(call, wanted.right, wanted.model);
  }
  authorizer.Record(call, wanted.right, wanted.model, {status.code(), 0});
  return status.ok() ? 0 : HttpStatusOf(status.code());
}

ServerFacts FactsOf(const Readiness& readiness, const ModelRegistry& registry, TimePoint now) {
  ServerFacts facts;
  facts.not_ready = readiness.WhyNot();
  for (const ModelStatus& status : registry.List()) {
    facts.models.push_back({status.name, status.version, status.model != nullptr,
                            status.error.ok() ? "" : status.error.ToString(),
                            now - status.load_end});
  }
  return facts;
}

int ProbeStatus(absl::string_view path, const Readiness& readiness, const ModelRegistry& registry) {
  if (path == "/v2/health/live") return kTrue;
  if (path == "/v2/health/ready") return readiness.ready() ? kTrue : kFalse;
  if (!absl::ConsumePrefix(&path, "/v2/models/") || !absl::ConsumeSuffix(&path, "/ready")) {
    return kNotFound;
  }
  std::int64_t version = 0;
  if (const std::size_t slash = path.find('/'); slash != absl::string_view::npos) {
    absl::string_view text = path.substr(slash);
    if (!absl::ConsumePrefix(&text, "/versions/") || text.empty()) return kNotFound;
    path = path.substr(0, slash);
    const absl::StatusOr<std::int64_t> number = FindVersion(registry, path, "version", text);
    if (!number.ok()) return kFalse;
    version = *number;
  }
  return registry.Find(path, version).ok() && readiness.ready() ? kTrue : kFalse;
}

}  // namespace normd
