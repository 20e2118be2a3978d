// The Open Inference Protocol's health paths over HTTP, for probes and gateways.

#ifndef NORMD_SERVER_RPC_PROBES_H_
#define NORMD_SERVER_RPC_PROBES_H_

#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "server/accept/authorizer.h"
#include "server/metrics/exposer.h"
#include "server/model/registry.h"
#include "server/rpc/readiness.h"

namespace normd {

// The HTTP status for a path; the protocol has no body for it:
//   /v2/health/live                       200
//   /v2/health/ready                      200 while the server takes requests, else 400
//   /v2/models/NAME[/versions/V]/ready    200 while it does and the model is loaded, else 400
//   anything else                         404
// Thread-safe; never blocks for long.
int ProbeStatus(absl::string_view path, const Readiness& readiness, const ModelRegistry& registry);

// What the live page tells that is in no metric. `now` is of the registry's clock. Thread-safe.
ServerFacts FactsOf(const Readiness& readiness, const ModelRegistry& registry, TimePoint now);

// The HTTP status with which the authorizer refuses a request to the metrics port, 401, 403 or 429;
// 0: it is allowed. /metrics and the live page need the right to observe, a health path that to
// health, a model's path that to have the model described; any other path, which does not exist,
// any identity. Thread-safe; never blocks.
int PathRefusal(const PathRequest& request, const Authorizer& authorizer);

}  // namespace normd

#endif  // NORMD_SERVER_RPC_PROBES_H_
