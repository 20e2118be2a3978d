// What a request is told that does not get into the queue, or has to leave it for another.

#ifndef NORMD_SERVER_BATCHING_QUEUE_REFUSALS_H_
#define NORMD_SERVER_BATCHING_QUEUE_REFUSALS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "server/batching/batch_policy.h"
#include "server/batching/request.h"

namespace normd {

// ResourceExhausted, each. `waiting`: how many requests of its model version do.
absl::Status NoRoom(const Request& request, std::int64_t waiting);
// It would wait for longer than its deadline or its own time-out leave.
absl::Status TooLate(const Request& request, const Arrival& arrival);
// `request` waits and is dropped for the one that `arrival` is about.
absl::Status GivesWay(const Request& request, const Arrival& arrival);

}  // namespace normd

#endif  // NORMD_SERVER_BATCHING_QUEUE_REFUSALS_H_
