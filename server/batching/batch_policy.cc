#include "server/batching/batch_policy.h"

#include <algorithm>

namespace normd {
namespace {

bool IsFull(std::int64_t rows, std::int64_t bytes, const BatchLimits& limits) {
  return rows >= limits.max_rows || bytes >= limits.max_bytes;
}

TimePoint EndOfDelay(TimePoint oldest, const BatchLimits& limits) {
  const Duration left = kNever - std::max(oldest, TimePoint{});
  return limits.max_queue_delay < left ? oldest + limits.max_queue_delay : kNever;
}

}  // namespace

BatchDecision DecideBatch(absl::Span<const WaitingRequest> waiting, const BatchLimits& limits,
                          TimePoint now, bool closing) {
  if (waiting.empty()) return {};
  std::int64_t rows = 0;
  std::int64_t bytes = 0;
  std::size_t take = 0;
  bool full = false;
  for (const WaitingRequest& request : waiting) {
    // Differences, because a sum could overflow: what is taken so far is below both limits.
    const bool fits =
        request.rows <= limits.max_rows - rows && request.bytes <= limits.max_bytes - bytes;
    if (take > 0 && !fits) {
      full = true;
      break;
    }
    ++take;
    rows += request.rows;
    bytes += request.bytes;
    full = IsFull(rows, bytes, limits);
    if (full) break;
  }
  if (full || closing) return {take, kNever};
  const TimePoint ready_at = EndOfDelay(waiting.front().admitted, limits);
  if (ready_at <= now) return {take, kNever};
  return {0, ready_at};
}

TimePoint ReadyAt(const QueueTotals& totals, const BatchLimits& limits, bool closing) {
  if (totals.requests == 0) return kNever;
  // The longest prefix stops short of the whole queue, or reaches a limit with its last request,
  // exactly when the sum over the whole queue reaches a limit.
  if (closing || IsFull(totals.rows, totals.bytes, limits)) return kAtOnce;
  if (limits.max_queue_delay <= Duration::zero()) return kAtOnce;
  return EndOfDelay(totals.oldest, limits);
}

}  // namespace normd
