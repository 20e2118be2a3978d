// When do waiting requests become a batch, and which? Pure functions of what waits, the limits and
// the time, so that every decision is a test.

#ifndef NORMD_SERVER_BATCHING_BATCH_POLICY_H_
#define NORMD_SERVER_BATCHING_BATCH_POLICY_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "server/base/clock.h"

namespace normd {

// Limits of one batch. A single request over a limit makes a batch of its own.
struct BatchLimits {
  std::int64_t max_rows = std::int64_t{1} << 20;
  std::int64_t max_bytes = std::int64_t{64} << 20;
  // How long a free lane may leave the oldest request waiting for company. 0: it takes what is
  // there. Raise it only where measurement shows that larger batches pay: it is added to the
  // latency of a lightly loaded server.
  Duration max_queue_delay{0};
};

struct WaitingRequest {
  std::int64_t rows = 0;
  std::int64_t bytes = 0;
  TimePoint admitted{};
};

struct BatchDecision {
  // How many from the front to take now; 0: none yet.
  std::size_t take = 0;
  // With take == 0: ask again then, or when something changes.
  TimePoint ask_again = kNever;
};

// `waiting`: one queue in order of arrival. Takes the longest prefix within the limits as soon as
// the prefix is full (the next request would not fit, or a limit is reached) or the oldest has
// waited for max_queue_delay, or when `closing` (no more will come).
BatchDecision DecideBatch(absl::Span<const WaitingRequest> waiting, const BatchLimits& limits,
                          TimePoint now, bool closing);

// A whole queue in short. The oldest request's arrival means nothing when `requests` is 0.
struct QueueTotals {
  std::int64_t requests = 0;
  std::int64_t rows = 0;
  std::int64_t bytes = 0;
  TimePoint oldest{};
};

inline constexpr TimePoint kAtOnce = TimePoint::min();

// From when on DecideBatch takes from a queue of these totals: kAtOnce, the end of its queue delay,
// or kNever when it is empty. What a queue keeps up to date at each change, in constant time, so
// that DecideBatch runs only when there is something to take.
TimePoint ReadyAt(const QueueTotals& totals, const BatchLimits& limits, bool closing);

}  // namespace normd

#endif  // NORMD_SERVER_BATCHING_BATCH_POLICY_H_
