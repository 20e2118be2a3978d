// The parts of the server that every front end shares.

#ifndef NORMD_SERVER_ACCEPT_ENVIRONMENT_H_
#define NORMD_SERVER_ACCEPT_ENVIRONMENT_H_

#include <atomic>
#include <cstdint>

#include "base/clock.h"
#include "server/accept/active_calls.h"
#include "server/accept/authorizer.h"
#include "server/accept/request_log.h"
#include "server/accept/stream_limits.h"
#include "server/batching/admission.h"
#include "server/batching/batch_queue.h"
#include "server/callers/callers.h"
#include "server/metrics/metrics.h"
#include "server/model/registry.h"
#include "server/regions/region_registry.h"

namespace normd {

struct AcceptLimits {
  // Bytes of a request's inputs, and of its outputs, at most.
  std::int64_t max_request_bytes = std::int64_t{256} << 20;
  // The size of a call's metadata, as HTTP/2 counts it, at most.
  std::int64_t max_metadata_bytes = std::int64_t{16} << 10;
  StreamLimits stream;
};

// Outlives every call; its references outlive it. Each member is thread-safe or constant.
struct AcceptEnvironment {
  const AcceptLimits limits;
  ModelRegistry& registry;
  Admission& admission;
  BatchQueue& queue;
  Metrics& metrics;
  const Clock& clock;
  RequestLog* request_log = nullptr;       // Null: off.
  const Authorizer* authorizer = nullptr;  // Null: everybody may do everything.
  RegionRegistry* regions = nullptr;       // Null: no shared memory.
  Callers callers{};
  ActiveCalls active{};
  std::atomic<std::uint64_t> next_request_id{1};
};

}  // namespace normd

#endif  // NORMD_SERVER_ACCEPT_ENVIRONMENT_H_
