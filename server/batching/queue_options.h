// How a BatchQueue works.

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
  // Whether what would be late is refused, by an estimate from how fast lanes take what waits.
  bool refuse_late = true;
  // How much younger a request overtakes those of the next lower priority; see DueAt.
  Duration priority_aging = std::chrono::seconds(1);
  // The largest request that RunInlineOn's runners compute; see RunsInline.
  std::int64_t max_inline_bytes = 0;
  // How long one taker at a time spins for work before it sleeps, for lanes whose batches take
  // little longer than a thread takes to wake. It is then given what could run inline, because its
  // core's caches are warm; requests that run inline sooner after each other than this wake a taker
  // to spin.
  Duration spin_wait{};
};

}  // namespace normd

#endif  // NORMD_SERVER_BATCHING_QUEUE_OPTIONS_H_
