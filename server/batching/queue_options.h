// The options of a BatchQueue.

#ifndef NORMD_SERVER_BATCHING_QUEUE_OPTIONS_H_
#define NORMD_SERVER_BATCHING_QUEUE_OPTIONS_H_

#include <chrono>
#include <cstdint>

#include "base/clock.h"
#include "server/batching/batch_policy.h"

namespace normd {

struct BatchQueueOptions {
  BatchLimits limits;                      // A model's config may override each of them.
  std::int64_t max_queue_requests = 1024;  // For one model version; likewise.
  // Refuses requests that would be late, by an estimate from the lanes' rate.
  bool refuse_late = true;
  // The age by which a request overtakes those of the next lower priority; see DueAt.
  Duration priority_aging = std::chrono::seconds(1);
  // The largest request that RunInlineOn's runners compute; see RunsInline.
  std::int64_t max_inline_bytes = 0;
  // The time for which one taker at a time spins for work before it sleeps, for lanes whose batches
  // take little longer than a thread takes to wake. A spinning taker gets requests that could run
  // inline, because its core's caches are warm. Inline requests that follow each other sooner than
  // this wake a taker to spin.
  Duration spin_wait{};
};

}  // namespace normd

#endif  // NORMD_SERVER_BATCHING_QUEUE_OPTIONS_H_
