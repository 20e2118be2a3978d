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

// What a request of no bytes costs a lane, in KiB of others.
constexpr std::int64_t kRequestKib = 4;

}  // namespace

TimePoint DueAt(Priority priority, TimePoint admitted, Duration aging) {
  return admitted + static_cast<int>(priority) * aging;
}

BatchDecision DecideBatch(absl::Span<const WaitingRequest> waiting, const BatchLimits& limits,
                          TimePoint now, bool closing) {
  if (waiting.empty()) return {};
  std::int64_t rows = 0;
  std::int64_t bytes = 0;
  std::size_t take = 0;
  bool full = false;
  TimePoint oldest = kNever;
  for (const WaitingRequest& request : waiting) {
    // Differences, because a sum could overflow: what is taken so far is below both limits.
    const bool fits =
        request.rows <= limits.max_rows - rows && request.bytes <= limits.max_bytes - bytes;
    if (take > 0 && !fits) {
      full = true;
      break;
    }
    ++take;
    oldest = std::min(oldest, request.admitted);
    rows += request.rows;
    bytes += request.bytes;
    full = IsFull(rows, bytes, limits);
    if (full) break;
  }
  if (full || closing) return {take, kNever};
  // Not full, so the prefix is the whole line, and its oldest the line's.
  const TimePoint ready_at = EndOfDelay(oldest, limits);
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

bool RunsInline(const WaitingRequest& request, std::int64_t waiting_requests,
                const BatchLimits& limits, std::int64_t inline_bytes) {
  return waiting_requests == 0 && limits.max_queue_delay <= Duration::zero() && inline_bytes > 0 &&
         request.bytes <= inline_bytes;
}

VirtualTime Charge(const WaitingRequest& request) {
  return (request.bytes / 1024 + kRequestKib) << static_cast<int>(request.priority);
}

}  // namespace normd
