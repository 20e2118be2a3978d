#include "server/batching/batch_policy.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace normd {
namespace {

bool IsFull(std::int64_t rows, std::int64_t bytes, const BatchLimits& limits) {
  return rows >= limits.max_rows || bytes >= limits.max_bytes;
}

// The cost of a request without bytes, in KiB of others.
constexpr std::int64_t kRequestKib = 4;

// The span of DrainRate's average.
constexpr std::int64_t kSpanBatches = 8;
constexpr Duration kSpanTime = std::chrono::milliseconds(5);

// The lead of a holder over another that counts as clear: after the exchange it still has as many,
// so that the two do not drop each other's requests in turn.
constexpr std::int64_t kClearlyMore = 2;

}  // namespace

TimePoint DueAt(Priority priority, TimePoint admitted, Duration aging) {
  return admitted + static_cast<int>(priority) * aging;
}

TimePoint HeldUntil(const WaitingRequest& request, const BatchLimits& limits) {
  const Duration patience = request.expires - std::max(request.admitted, TimePoint{});
  const Duration most = request.expires == kNever ? patience : patience - patience / 4;
  return request.admitted + std::min(limits.max_queue_delay, most);
}

BatchDecision DecideBatch(absl::Span<const WaitingRequest> waiting, const BatchLimits& limits,
                          TimePoint now, bool closing) {
  if (waiting.empty()) return {};
  std::int64_t rows = 0;
  std::int64_t bytes = 0;
  std::size_t take = 0;
  bool full = false;
  TimePoint held_until = kNever;
  for (const WaitingRequest& request : waiting) {
    // Differences, because a sum could overflow: what is taken so far is below both limits.
    const bool fits =
        request.rows <= limits.max_rows - rows && request.bytes <= limits.max_bytes - bytes;
    if (take > 0 && !fits) {
      full = true;
      break;
    }
    ++take;
    held_until = std::min(held_until, HeldUntil(request, limits));
    rows += request.rows;
    bytes += request.bytes;
    full = IsFull(rows, bytes, limits);
    if (full) break;
  }
  if (full || closing) return {take, kNever};
  // It is not full, so the prefix is the whole line.
  if (held_until <= now) return {take, kNever};
  return {0, held_until};
}

TimePoint ReadyAt(const QueueTotals& totals, const BatchLimits& limits, bool closing) {
  if (totals.requests == 0) return kNever;
  // The longest prefix stops short of the whole queue, or reaches a limit with its last request,
  // exactly when the sum over the whole queue reaches a limit.
  if (closing || IsFull(totals.rows, totals.bytes, limits)) return kAtOnce;
  if (limits.max_queue_delay <= Duration::zero()) return kAtOnce;
  return totals.held_until;
}

bool RunsInline(const WaitingRequest& request, std::int64_t waiting_requests,
                const BatchLimits& limits, std::int64_t inline_bytes) {
  return waiting_requests == 0 && limits.max_queue_delay <= Duration::zero() && inline_bytes > 0 &&
         request.bytes <= inline_bytes;
}

std::int64_t Cost(const WaitingRequest& request) { return request.bytes / 1024 + kRequestKib; }

VirtualTime Charge(const WaitingRequest& request) {
  return Cost(request) << static_cast<int>(request.priority);
}

void DrainRate::OnTake(std::int64_t cost, TimePoint now) {
  const TimePoint last = std::exchange(last_, now);
  if (last == kNever) return;
  ++current_.batches;
  current_.cost += cost;
  current_.time += now - last;
  if (current_.batches < kSpanBatches || current_.time < kSpanTime) return;
  earlier_ = std::exchange(current_, {});
}

Duration DrainRate::TimeFor(std::int64_t cost) const {
  const std::int64_t taken = earlier_.cost + current_.cost;
  if (earlier_.batches == 0 || taken <= 0) return Duration::zero();
  const double time = static_cast<double>((earlier_.time + current_.time).count());
  const double needed = static_cast<double>(cost) * time / static_cast<double>(taken);
  // Below the largest double that is a Duration; no patience is longer than this.
  constexpr double kLongest = 9e18;
  return Duration(static_cast<Duration::rep>(std::min(needed, kLongest)));
}

Verdict DecideArrival(const Arrival& arrival) {
  const bool late = arrival.wait > arrival.patience - arrival.patience / 4;
  if (!arrival.line_is_full && !late) return Verdict::kEnters;
  if (arrival.most_waiting - kClearlyMore < arrival.own_waiting) {
    return arrival.line_is_full ? Verdict::kFindsNoRoom : Verdict::kIsLate;
  }
  return arrival.wait_instead > arrival.patience ? Verdict::kIsLate : Verdict::kReplaces;
}

}  // namespace normd
