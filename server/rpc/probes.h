// The Open Inference Protocol's health paths over HTTP, for probes and gateways.

#ifndef NORMD_SERVER_RPC_PROBES_H_
#define NORMD_SERVER_RPC_PROBES_H_

#include "absl/strings/string_view.h"
#include "server/accept/authorizer.h"
#include "server/metrics/exposer.h"
#include "server/model/registry.h"
#include "server/rpc/readiness.h"

namespace normd {

// The HTTP status for a path, which the protocol gives no body:
//   /v2/health/live                       200
//   /v2/health/ready                      200 while the server takes requests, else 400
//   /v2/models/NAME[/versions/V]/ready    200 while it does and the model is loaded, else 400
//   anything else                         404
// Thread-safe; never blocks for long.
int ProbeStatus(absl::string_view path, const Readiness& readiness, const ModelRegistry& registry);

// The HTTP status with which the authorizer refuses a request to the metrics port, 401, 403 or 429;
// 0: it may. /metrics is to be observed, health to be asked for, a model to be described; anything
// else, which there is not, is for whoever is somebody. Thread-safe; never blocks.
int PathRefusal(const PathRequest& request, const Authorizer& authorizer);

}  // namespace normd

#endif  // NORMD_SERVER_RPC_PROBES_H_
