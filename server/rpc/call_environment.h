// What the calls of one service share.

#ifndef NORMD_SERVER_RPC_CALL_ENVIRONMENT_H_
#define NORMD_SERVER_RPC_CALL_ENVIRONMENT_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "server/batching/admission.h"
#include "server/batching/batch_queue.h"
#include "server/metrics/metrics.h"
#include "server/model/registry.h"
#include "server/net/delivered_bytes.h"
#include "server/rpc/active_calls.h"
#include "server/rpc/readiness.h"
#include "server/rpc/request_log.h"
#include "server/rpc/response_watch.h"
#include "server/rpc/stream_header.h"

namespace normd {

struct NormServiceOptions {
  std::int64_t max_request_bytes = std::int64_t{256}
                                   << 20;  // Of a request's inputs, and of its output.
  StreamLimits stream;
  // How long a stream's client may neither send nor take anything; 0: as long as it likes.
  Duration stream_idle_timeout = std::chrono::seconds(60);
  // How long a client may take to take a response, beside what PatienceFor adds for its bytes; 0:
  // as long as it likes.
  Duration response_timeout = std::chrono::seconds(60);
  Duration retry_after = std::chrono::milliseconds(100);  // The hint in a refusal.
  // What GetServerInfo tells.
  std::string version;
  std::string cuda;
  std::string simd;
  std::vector<std::string> lanes;
  std::int64_t max_inflight_bytes = 0;

  // `timeout`, and a second for each MiB: a client that is slower than that is given up.
  static Duration PatienceFor(Duration timeout, std::int64_t bytes) {
    return timeout + std::chrono::seconds(bytes >> 20);
  }
  Duration ResponsePatience(std::size_t bytes) const {
    return PatienceFor(response_timeout, static_cast<std::int64_t>(bytes));
  }
};

// Outlives every call; its references outlive it. Each member is thread-safe or constant.
struct CallEnvironment {
  const NormServiceOptions options;
  ModelRegistry& registry;
  Admission& admission;
  BatchQueue& queue;
  Metrics& metrics;
  const Readiness& readiness;
  const Clock& clock;
  RequestLog* request_log = nullptr;  // Null: off.
  ActiveCalls active{};
  DeliveredBytes delivered{};
  ResponseWatch responses{options.response_timeout};
  std::atomic<std::uint64_t> next_request_id{1};
};

}  // namespace normd

#endif  // NORMD_SERVER_RPC_CALL_ENVIRONMENT_H_
