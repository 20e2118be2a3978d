// The errors of requests that do not get into the queue, or have to leave it for another.

#ifndef NORMD_SERVER_BATCHING_QUEUE_REFUSALS_H_
#define NORMD_SERVER_BATCHING_QUEUE_REFUSALS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "server/batching/batch_policy.h"
#include "server/batching/request.h"

namespace normd {

// Each is ResourceExhausted. `waiting`: the waiting requests of its model version.
absl::Status NoRoom(const Request& request, std::int64_t waiting);
// It would wait for longer than its deadline or its own time-out allows.
absl::Status TooLate(const Request& request, const Arrival& arrival);
// `request` waits and is dropped for `arrival`'s.
absl::Status GivesWay(const Request& request, const Arrival& arrival);

}  // namespace normd

#endif  // NORMD_SERVER_BATCHING_QUEUE_REFUSALS_H_
