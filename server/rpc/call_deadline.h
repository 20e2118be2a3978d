// A call's deadline on the server's clock.

#ifndef NORMD_SERVER_RPC_CALL_DEADLINE_H_
#define NORMD_SERVER_RPC_CALL_DEADLINE_H_

#include <grpc/support/time.h>

#include <chrono>
#include <cstdint>

#include "base/clock.h"
#include "grpcpp/server_context.h"

namespace normd {

// kNever for a call without one, and for one that is years away.
inline TimePoint DeadlineOf(gpr_timespec deadline, const Clock& clock) {
  // Longer than a server lives, and within every clock's range.
  constexpr std::int64_t kFarSeconds = std::int64_t{365} * 24 * 3600;
  if (deadline.tv_sec == gpr_inf_future(deadline.clock_type).tv_sec) return kNever;
  const gpr_timespec left = gpr_time_sub(gpr_convert_clock_type(deadline, GPR_CLOCK_MONOTONIC),
                                         gpr_now(GPR_CLOCK_MONOTONIC));
  if (left.tv_sec > kFarSeconds) return kNever;
  if (left.tv_sec < -kFarSeconds) return clock.Now();
  return clock.Now() + std::chrono::seconds(left.tv_sec) + Duration(left.tv_nsec);
}

inline TimePoint DeadlineOf(const grpc::CallbackServerContext& context, const Clock& clock) {
  // gRPC's own form: the system clock's range ends 292 years from 1970, and a client's largest time
  // limit, 99999999 hours, overflows it.
  return DeadlineOf(context.raw_deadline(), clock);
}

}  // namespace normd

#endif  // NORMD_SERVER_RPC_CALL_DEADLINE_H_
