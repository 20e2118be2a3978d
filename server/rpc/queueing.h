// How a request wants to wait for a lane.

#ifndef NORMD_SERVER_RPC_QUEUEING_H_
#define NORMD_SERVER_RPC_QUEUEING_H_

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "server/batching/priority.h"
#include "wire/normalize_request.h"

namespace normd {

struct Queueing {
  Priority priority = Priority::kNormal;
  Duration timeout = Duration::max();
};

// InvalidArgument, naming the field, for a priority or a time-out that there is not.
absl::StatusOr<Queueing> CheckQueueing(const NormalizeRequestView& view);

}  // namespace normd

#endif  // NORMD_SERVER_RPC_QUEUEING_H_
