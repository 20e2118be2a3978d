// A call's deadline on the server's clock.

#ifndef NORMD_SERVER_RPC_CALL_DEADLINE_H_
#define NORMD_SERVER_RPC_CALL_DEADLINE_H_

#include <chrono>

#include "grpcpp/server_context.h"
#include "server/base/clock.h"

namespace normd {

// kNever for a call without one.
inline TimePoint DeadlineOf(const grpc::CallbackServerContext& context, const Clock& clock) {
  using std::chrono::system_clock;
  // Further away than a server lives, and near the end of the clock's range.
  constexpr auto kFar = std::chrono::hours(24 * 365);
  const system_clock::time_point deadline = context.deadline();
  if (deadline == system_clock::time_point::max()) return kNever;
  const auto left = deadline - system_clock::now();
  if (left > kFar) return kNever;
  return clock.Now() + std::chrono::duration_cast<Duration>(left);
}

}  // namespace normd

#endif  // NORMD_SERVER_RPC_CALL_DEADLINE_H_
