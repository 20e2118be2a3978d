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

// The span of TurnPace's average.
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

bool BatchFill::Takes(const WaitingRequest& next) {
  // Differences, because a sum could overflow: what is taken so far is below both limits.
  const bool fits =
      next.rows <= limits_.max_rows - rows_ && next.bytes <= limits_.max_bytes - bytes_;
  if (full_ || (requests_ > 0 && !fits)) return false;
  ++requests_;
  rows_ += next.rows;
  bytes_ += next.bytes;
  full_ = IsFull(rows_, bytes_, limits_);
  return true;
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

void TurnPace::OnTake(VirtualTime turns, TimePoint now) {
  const TimePoint last = std::exchange(last_, now);
  if (last == kNever) return;
  ++current_.batches;
  current_.turns += turns;
  current_.time += now - last;
  if (current_.batches < kSpanBatches || current_.time < kSpanTime) return;
  earlier_ = std::exchange(current_, {});
}

Duration TurnPace::TimeFor(VirtualTime turns) const {
  const VirtualTime taken = earlier_.turns + current_.turns;
  if (earlier_.batches == 0 || taken <= 0) return Duration::zero();
  const double time = static_cast<double>((earlier_.time + current_.time).count());
  const double needed = static_cast<double>(turns) * time / static_cast<double>(taken);
  // Below the largest double that is a Duration; no patience is longer than this.
  constexpr double kLongest = 9e18;
  return Duration(static_cast<Duration::rep>(std::min(needed, kLongest)));
}

Duration LongestWait(Duration patience) { return patience - patience / 4; }

Verdict DecideArrival(const Arrival& arrival) {
  const bool late = arrival.wait > LongestWait(arrival.patience);
  if (!arrival.line_is_full) return late ? Verdict::kIsLate : Verdict::kEnters;
  if (arrival.most_waiting - kClearlyMore < arrival.own_waiting) return Verdict::kFindsNoRoom;
  return late ? Verdict::kIsLate : Verdict::kReplaces;
}

}  // namespace normd
