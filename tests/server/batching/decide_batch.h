// When a line that is spelt out becomes a batch, and of how many requests: what a WaitingSet finds
// from sums.

#ifndef NORMD_TESTS_SERVER_BATCHING_DECIDE_BATCH_H_
#define NORMD_TESTS_SERVER_BATCHING_DECIDE_BATCH_H_

#include <algorithm>
#include <cstddef>
#include <vector>

#include "server/batching/batch_policy.h"

namespace normd {

struct BatchDecision {
  // The number of requests to take from the front now; 0: none yet.
  std::size_t take = 0;
  // With take == 0: ask again then, or when something changes.
  TimePoint ask_again = kNever;
};

// `waiting`: one line in the order in which it leaves. Takes the longest prefix within the limits
// when that prefix is full, when the time to hold one of its requests has passed, or when
// `closing`.
inline BatchDecision DecideBatch(const std::vector<WaitingRequest>& waiting,
                                 const BatchLimits& limits, TimePoint now, bool closing) {
  BatchFill fill(limits);
  BatchDecision decision;
  for (const WaitingRequest& request : waiting) {
    if (!fill.Takes(request)) break;
    ++decision.take;
    decision.ask_again = std::min(decision.ask_again, HeldUntil(request, limits));
  }
  // Full if it takes no further request, even of nothing.
  const bool full = decision.take < waiting.size() || !fill.Takes({});
  if (decision.take == 0 || full || closing || decision.ask_again <= now) {
    return {decision.take, kNever};
  }
  return {0, decision.ask_again};
}

}  // namespace normd

#endif  // NORMD_TESTS_SERVER_BATCHING_DECIDE_BATCH_H_
