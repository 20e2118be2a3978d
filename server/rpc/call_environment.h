// The parts that the calls of all gRPC services share.

#ifndef NORMD_SERVER_RPC_CALL_ENVIRONMENT_H_
#define NORMD_SERVER_RPC_CALL_ENVIRONMENT_H_

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"
#include "server/accept/control_call.h"
#include "server/accept/environment.h"
#include "server/rpc/response_watch.h"

namespace normd {

struct CallOptions {
  // The longest time in which a stream's client may neither send nor take anything; 0: no limit.
  Duration stream_idle_timeout = std::chrono::seconds(60);
  // The time for a client to take a response, beside PatienceFor's addition for its bytes; 0: no
  // limit.
  Duration response_timeout = std::chrono::seconds(60);
  Duration retry_after = std::chrono::milliseconds(100);  // The hint in a refusal.

  // `timeout`, and a second for each MiB: a slower client is dropped.
  static Duration PatienceFor(Duration timeout, std::int64_t bytes) {
    return timeout + std::chrono::seconds(bytes >> 20);
  }
  Duration ResponsePatience(std::size_t bytes) const {
    return PatienceFor(response_timeout, static_cast<std::int64_t>(bytes));
  }
};

// Outlives every call; `accept` outlives it. Each member is thread-safe or constant.
struct CallEnvironment {
  const CallOptions options;
  AcceptEnvironment& accept;
  ResponseWatch responses{options.response_timeout};
  ControlThreads control{};
};

}  // namespace normd

#endif  // NORMD_SERVER_RPC_CALL_ENVIRONMENT_H_
