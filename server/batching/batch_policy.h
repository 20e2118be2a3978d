// Decides when waiting requests become a batch, which ones, and whose turn it is. Pure functions of
// the waiting requests, the limits and the time, so that every decision can be tested.
//
// Four questions, one function each:
// - whether a request enters a line, and in whose place: DecideArrival;
// - within a line (one model version, one type): DueAt orders a caller's requests, by priority and
//   age;
// - how many of a line go, and when: BatchFill and ReadyAt;
// - between models and between callers: each is charged for what it takes, and the one that has
//   been charged least goes next (Charge, Turns). So a flood delays its own requests, not those of
//   another model or caller.

#ifndef NORMD_SERVER_BATCHING_BATCH_POLICY_H_
#define NORMD_SERVER_BATCHING_BATCH_POLICY_H_

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"
#include "server/batching/priority.h"
#include "server/batching/turns.h"

namespace normd {

// Limits of one batch. A single request over a limit makes a batch of its own.
struct BatchLimits {
  std::int64_t max_rows = std::int64_t{1} << 20;
  std::int64_t max_bytes = std::int64_t{64} << 20;
  // The longest time that a free lane leaves the oldest request waiting for others; see HeldUntil.
  // 0: it takes what is there. Raise it only if measurements show that larger batches pay: it is
  // added to the latency of a lightly loaded server.
  Duration max_queue_delay{0};
};

// The options of a BatchQueue.
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

struct WaitingRequest {
  std::int64_t rows = 0;
  std::int64_t bytes = 0;
  TimePoint admitted{};
  Priority priority = Priority::kNormal;
  TimePoint expires = kNever;  // See WaitsUntil.
};

// A line's requests leave in the order of this time, and of arrival where it is the same. One level
// less costs `aging`: a request overtakes those of the next lower level that came less than that
// before it, so each waits for a bounded time behind higher ones, whatever their number.
TimePoint DueAt(Priority priority, TimePoint admitted, Duration aging);

// The time until which a free lane leaves the request waiting for others: max_queue_delay, or three
// quarters of the time that the request may wait, if that is less.
TimePoint HeldUntil(const WaitingRequest& request, const BatchLimits& limits);

// A batch that takes a line's requests in the order in which they leave: the longest prefix within
// the limits.
class BatchFill {
 public:
  explicit BatchFill(const BatchLimits& limits) : limits_(limits) {}

  // Whether `next` is part of it, as the first one always is.
  bool Takes(const WaitingRequest& next);

 private:
  const BatchLimits limits_;
  bool full_ = false;
  std::int64_t requests_ = 0;
  std::int64_t rows_ = 0;
  std::int64_t bytes_ = 0;
};

// A whole line in short.
struct QueueTotals {
  std::int64_t requests = 0;
  std::int64_t rows = 0;
  std::int64_t bytes = 0;
  TimePoint held_until = kNever;  // The earliest HeldUntil of its requests.
};

inline constexpr TimePoint kAtOnce = TimePoint::min();

// The time at which a batch is taken from a line with these totals. kAtOnce: its BatchFill is full
// with some of it or all (a request would not fit, or a limit is reached), or when `closing` (no
// more will come). Otherwise the end of its queue delay; kNever when it is empty.
TimePoint ReadyAt(const QueueTotals& totals, const BatchLimits& limits, bool closing);

// Whether the thread that brings a request computes it at once: when nothing waits, so that it
// overtakes no other, when its line does not wait for others, and when it has at most
// `inline_bytes`; 0 of them: never.
bool RunsInline(const WaitingRequest& request, std::int64_t waiting_requests,
                const BatchLimits& limits, std::int64_t inline_bytes);

// The cost of a request to a lane: its KiB, plus a few for any request.
std::int64_t Cost(const WaitingRequest& request);

// The charge of one request to its model and its caller: its cost, doubled for each lower level. So
// where several flood, one of high priority gets twice the share of one of normal, which gets twice
// that of one of low.
VirtualTime Charge(const WaitingRequest& request);

// The pace of a line's turns in virtual time, while lanes cannot empty the line. Only then is the
// time between two batches the lanes' need; otherwise it depends on the clients. Batches of
// different lanes come in clusters, so the average is over at least eight of them and 5 ms, and
// over at most twice that and the last one.
class TurnPace {
 public:
  // Lanes took a batch with which virtual time went on by `turns`, at `now`, and left requests that
  // could have gone.
  void OnTake(VirtualTime turns, TimePoint now);
  // No request is left that may go.
  void Reset() { *this = TurnPace(); }

  // The time that turns of this length take; zero while too little is known.
  Duration TimeFor(VirtualTime turns) const;

 private:
  struct Span {
    std::int64_t batches = 0;
    VirtualTime turns = 0;
    Duration time{};
  };
  Span earlier_;
  Span current_;
  TimePoint last_ = kNever;
};

// The situation of a request that comes to a line. A holder is the account that it counts against.
struct Arrival {
  bool line_is_full = false;
  Duration wait{};                      // An estimate of its wait in its caller's turns.
  Duration patience = Duration::max();  // The longest wait with which it is in time.
  std::int64_t own_waiting = 0;         // Requests of its holder.
  std::int64_t most_waiting = 0;        // The droppable requests of the holder with most of them.
};

enum class Verdict {
  kEnters,
  kReplaces,  // It replaces the newest request of the holder that has most.
  kFindsNoRoom,
  kIsLate,
};

// The longest wait with which a request enters: three quarters of its patience. The rest covers
// errors of the estimate.
Duration LongestWait(Duration patience);

// A request that would wait for longer is late. If it finds the line full, a holder with at least
// two more requests than its own gives one up for it.
Verdict DecideArrival(const Arrival& arrival);

}  // namespace normd

#endif  // NORMD_SERVER_BATCHING_BATCH_POLICY_H_
