// Decides when waiting requests become a batch, which ones, and whose turn it is. Pure functions of
// the waiting requests, the limits and the time, so that every decision can be tested.
//
// Four questions, one function each:
// - whether a request enters a line, and in whose place: DecideArrival;
// - within a line (one model version, one type): DueAt orders the requests, by priority and age;
// - how many of a line go, and when: DecideBatch;
// - between models: each is charged for what it takes, and the one that has been charged least goes
//   next (Charge). So a model's own flood delays its own requests, not those of another.

#ifndef NORMD_SERVER_BATCHING_BATCH_POLICY_H_
#define NORMD_SERVER_BATCHING_BATCH_POLICY_H_

#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "base/clock.h"
#include "server/batching/priority.h"

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

struct BatchDecision {
  // The number of requests to take from the front now; 0: none yet.
  std::size_t take = 0;
  // With take == 0: ask again then, or when something changes.
  TimePoint ask_again = kNever;
};

// `waiting`: one line in the order of DueAt. Takes the longest prefix within the limits as soon as
// the prefix is full (the next request would not fit, or a limit is reached) or one of it is no
// longer to be held, by HeldUntil, or when `closing` (no more will come).
BatchDecision DecideBatch(absl::Span<const WaitingRequest> waiting, const BatchLimits& limits,
                          TimePoint now, bool closing);

// A whole line in short.
struct QueueTotals {
  std::int64_t requests = 0;
  std::int64_t rows = 0;
  std::int64_t bytes = 0;
  TimePoint held_until = kNever;  // The earliest HeldUntil of its requests.
};

inline constexpr TimePoint kAtOnce = TimePoint::min();

// The time at which DecideBatch takes from a line with these totals: kAtOnce, the end of its queue
// delay, or kNever when it is empty. A queue maintains it at each change, in constant time, so that
// DecideBatch runs only when it can take something.
TimePoint ReadyAt(const QueueTotals& totals, const BatchLimits& limits, bool closing);

// Whether the thread that brings a request computes it at once: when nothing waits, so that it
// overtakes no other, when its line does not wait for others, and when it has at most
// `inline_bytes`; 0 of them: never.
bool RunsInline(const WaitingRequest& request, std::int64_t waiting_requests,
                const BatchLimits& limits, std::int64_t inline_bytes);

// Start-time fair queueing over models. Virtual time is charged work; it stands still while nothing
// is taken. A model's turn begins where its last batch ended, or now if nothing of it has waited
// since: an idle model saves up no share, and loses no debt. The earliest turn is next, and its
// beginning becomes the current virtual time. So while one model has a flood, another's request
// waits at most for the batch that each lane computes; with several floods, for at most one more
// batch of each. Source: Goyal, Vin, Cheng, "Start-time fair queueing" (1997), with batches as
// packets.
using VirtualTime = std::int64_t;

struct Turn {
  VirtualTime begin = 0;
  std::uint64_t sequence = 0;  // The front request's; decides between turns that begin together.
  // NOLINTNEXTLINE(modernize-use-nullptr): to clang-tidy 14, 0 is a pointer here.
  friend auto operator<=>(const Turn&, const Turn&) = default;
};

// The cost of a request to a lane: its KiB, plus a few for any request.
std::int64_t Cost(const WaitingRequest& request);

// The charge of one request to its model: its cost, doubled for each lower level. So where models
// flood, one of high priority gets twice the share of one of normal, which gets twice that of one
// of low.
VirtualTime Charge(const WaitingRequest& request);

// The rate at which lanes take from lines that they cannot empty. Only then is the time between two
// batches the lanes' need; otherwise it depends on the clients. Batches of different lanes come in
// clusters, so the average is over at least eight of them and 5 ms, and over at most twice that and
// the last one.
class DrainRate {
 public:
  // Lanes took a batch of this cost at `now`, and left requests that could have gone.
  void OnTake(std::int64_t cost, TimePoint now);
  // No request is left that may go.
  void Reset() { *this = DrainRate(); }

  // The time until lanes have taken work of this cost; zero while too little is known.
  Duration TimeFor(std::int64_t cost) const;

 private:
  struct Span {
    std::int64_t batches = 0;
    std::int64_t cost = 0;
    Duration time{};
  };
  Span earlier_;
  Span current_;
  TimePoint last_ = kNever;
};

// The situation of a request that comes to a line. A holder is the account that it counts against.
struct Arrival {
  bool line_is_full = false;
  Duration wait{};                      // An estimate of its wait at the end.
  Duration wait_instead{};              // The same, in place of the request that may be dropped.
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

// A request is late if it would spend more than three quarters of its patience waiting: the rest
// covers errors of the estimate. If it is late, or finds the line full, a holder with at least two
// more requests than its own gives one up for it. Such a request may wait for all of its patience,
// so that a holder whose flood fills the line until its own requests are late does not shut out
// others with the same deadlines.
Verdict DecideArrival(const Arrival& arrival);

}  // namespace normd

#endif  // NORMD_SERVER_BATCHING_BATCH_POLICY_H_
