// The Open Inference Protocol's health paths over HTTP, for probes and gateways.

#ifndef NORMD_SERVER_RPC_PROBES_H_
#define NORMD_SERVER_RPC_PROBES_H_

#include "absl/strings/string_view.h"
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

}  // namespace normd

#endif  // NORMD_SERVER_RPC_PROBES_H_
