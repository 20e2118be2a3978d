// When do waiting requests become a batch, which, and whose turn is it? Pure functions of what
// waits, the limits and the time, so that every decision is a test.
//
// Four questions, one function each:
// - whether a request enters a line, and in whose place: DecideArrival;
// - within a line (one model version, one type): DueAt orders the requests, by priority and age;
// - how many of a line go, and when: DecideBatch;
// - between models: each is charged for what it takes, and the one that has been charged least goes
//   next (Charge). So a model's own flood delays its own requests, not those of another.

#ifndef NORMD_SERVER_BATCHING_BATCH_POLICY_H_
#define NORMD_SERVER_BATCHING_BATCH_POLICY_H_

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
  // How long a free lane may leave the oldest request waiting for company. 0: it takes what is
  // there. Raise it only where measurement shows that larger batches pay: it is added to the
  // latency of a lightly loaded server.
  Duration max_queue_delay{0};
};

struct WaitingRequest {
  std::int64_t rows = 0;
  std::int64_t bytes = 0;
  TimePoint admitted{};
  Priority priority = Priority::kNormal;
};

// A line's requests leave in the order of this time, and of arrival where it is the same. One level
// less costs `aging`: a request overtakes those of the next lower level that came less than that
// before it, so each waits for a bounded time behind higher ones, whatever their number.
TimePoint DueAt(Priority priority, TimePoint admitted, Duration aging);

struct BatchDecision {
  // How many from the front to take now; 0: none yet.
  std::size_t take = 0;
  // With take == 0: ask again then, or when something changes.
  TimePoint ask_again = kNever;
};

// `waiting`: one line in the order of DueAt. Takes the longest prefix within the limits as soon as
// the prefix is full (the next request would not fit, or a limit is reached) or the oldest has
// waited for max_queue_delay, or when `closing` (no more will come).
BatchDecision DecideBatch(absl::Span<const WaitingRequest> waiting, const BatchLimits& limits,
                          TimePoint now, bool closing);

// A whole line in short. The oldest request's arrival means nothing when `requests` is 0.
struct QueueTotals {
  std::int64_t requests = 0;
  std::int64_t rows = 0;
  std::int64_t bytes = 0;
  TimePoint oldest{};
};

inline constexpr TimePoint kAtOnce = TimePoint::min();

// From when on DecideBatch takes from a line of these totals: kAtOnce, the end of its queue delay,
// or kNever when it is empty. What a queue keeps up to date at each change, in constant time, so
// that DecideBatch runs only when there is something to take.
TimePoint ReadyAt(const QueueTotals& totals, const BatchLimits& limits, bool closing);

// Whether a request is computed at once, by the thread that brings it: when nothing waits, so that
// it overtakes nobody, when its line wants no company, and when it has no more than `inline_bytes`;
// 0 of them: never.
bool RunsInline(const WaitingRequest& request, std::int64_t waiting_requests,
                const BatchLimits& limits, std::int64_t inline_bytes);

// Start-time fair queueing over models. Virtual time is work that was charged; it stands still
// while nothing is taken. A model's turn begins where its last batch ended, or now if it has waited
// for nothing since: nobody saves up a share by being idle, and nobody sheds a debt by it. The
// earliest turn goes next, and its beginning becomes the virtual time of now. So while one model
// has a flood, another's request waits for no more than the batch that each lane computes; with
// several floods, for at most one batch more of each. Source: Goyal, Vin, Cheng, "Start-time fair
// queueing" (1997), with batches as packets.
using VirtualTime = std::int64_t;

struct Turn {
  VirtualTime begin = 0;
  std::uint64_t sequence = 0;  // The front request's; decides between turns that begin together.
  // NOLINTNEXTLINE(modernize-use-nullptr): to clang-tidy 14, 0 is a pointer here.
  friend auto operator<=>(const Turn&, const Turn&) = default;
};

// What a request costs a lane: its KiB, with a few for its being a request at all.
std::int64_t Cost(const WaitingRequest& request);

// What a model is charged for one request: its cost, twice as much for each level less. So where
// models flood, one of high priority gets twice the share of one of normal, which gets twice that
// of one of low.
VirtualTime Charge(const WaitingRequest& request);

// How fast lanes take from lines that they cannot empty. Only then is the time between two batches
// what the lanes need; otherwise it is what the clients leave. Batches of different lanes come in
// clusters, so it is an average over at least eight of them and 5 ms, and of at most twice that and
// the last one.
class DrainRate {
 public:
  // Lanes took a batch of this cost at `now`, and left something that could have gone.
  void OnTake(std::int64_t cost, TimePoint now);
  // Nothing is left that may go.
  void Reset() { *this = DrainRate(); }

  // How long lanes need until they have taken what costs `cost`; zero while too little is known.
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

// What a request finds that comes to a line. A holder is whom its requests count against.
struct Arrival {
  bool line_is_full = false;
  Duration wait{};                      // An estimate of how long it would wait at the end.
  Duration wait_instead{};              // The same, in place of the request that may be dropped.
  Duration patience = Duration::max();  // How long it may wait to be in time.
  std::int64_t own_waiting = 0;         // Requests of its holder.
  std::int64_t most_waiting = 0;  // Those that may be dropped of the holder with most of them.
};

enum class Verdict {
  kEnters,
  kReplaces,  // The newest request of the holder that has most is dropped for it.
  kFindsNoRoom,
  kIsLate,
};

// A request is late if it would spend more than three quarters of its patience waiting: the rest is
// for what the estimate is wrong by. If it is late, or finds the line full, a holder with at least
// two requests more than its own gives one up for it. Such a request may wait for all of its
// patience, so that a holder whose flood fills the line to where its own requests are late does not
// shut out others with the same deadlines.
Verdict DecideArrival(const Arrival& arrival);

}  // namespace normd

#endif  // NORMD_SERVER_BATCHING_BATCH_POLICY_H_
