// The bounded queue between front ends and lanes. Lanes pull: work waits here, where it can still
// be cancelled, expire or find company, and not in front of a device.
//
// Invariants:
// - A request that Push accepted is completed exactly once: by the lane that took it, or by the
//   queue (cancelled, expired, dropped, aborted), which calls `done` without holding its lock.
// - Overload is shed where it is cheapest, before the wait: DecideArrival refuses what would be
//   late, and drops for another's request one of the holder that has most waiting.
// - A holder's requests of one (model version, type) and priority leave in the order of arrival;
//   DueAt says how priorities mix.
// - Model versions, the types of one and the holders in a line take turns: see Turns. Only lines
//   that ReadyAt lets go do.

#ifndef NORMD_SERVER_BATCHING_BATCH_QUEUE_H_
#define NORMD_SERVER_BATCHING_BATCH_QUEUE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "server/batching/batch_policy.h"
#include "server/batching/request.h"

namespace normd {

// Thread-safe. No function blocks but Take and Reap, and Push while it computes a request inline.
class BatchQueue {
 public:
  BatchQueue(BatchQueueOptions options, const Clock& clock);
  // Requires Close and an empty queue.
  ~BatchQueue();

  // Takes `request` on success and leaves it with the caller on failure: ResourceExhausted when the
  // model's queue is full or too long for its deadline (retry), Unavailable after Close. May
  // complete another with ResourceExhausted, whose place it then takes. A request that is already
  // cancelled or expired is accepted and completed at once. One that may run inline, and by
  // RunsInline does, is computed before Push returns. Throws std::bad_alloc only if `request` is
  // not accepted.
  absl::Status Push(std::unique_ptr<Request>& request);

  // Has Push stage the inputs of requests, if `stager` is not null. It outlives the
  // queue. Called before the first Push.
  void StageWith(InputStager* stager);

  // Lends runners on which threads in Push compute requests inline, each by one thread at a time;
  // none to begin with. A request that finds all of them in use waits like any other. They are used
  // until the next call, and outlive the Pushes in progress by then.
  void RunInlineOn(std::vector<BatchRunner*> runners);

  struct Poll {
    std::unique_ptr<Batch> batch;  // Null: nothing may go yet.
    TimePoint ask_again = kNever;  // Then, or after the next Push or Close.
    bool finished = false;         // Closed and empty: no batch will ever come.
  };
  // The decision without the wait; for tests and for lanes with a loop of their own.
  Poll TryTake();
  // Waits for a batch. Null: closed and empty.
  std::unique_ptr<Batch> Take();

  // Completes a waiting request with CANCELLED; no effect if it has left the queue. The caller sets
  // Request::cancelled first, so that one that is not yet pushed ends at its Push.
  void Cancel(std::uint64_t request_id);

  // Completes what has passed its deadline or its queue time-out with DEADLINE_EXCEEDED, which
  // tells which of the two it was. Returns the next such time.
  TimePoint ExpireDue();
  // Calls ExpireDue on time until the queue is closed and empty. The loop of one thread, so that
  // requests expire also while every lane is busy.
  void Reap();

  // From now on requests go on to the lanes without queue delay; new ones are still taken.
  void EndQueueDelay();
  // Refuses new requests from now on; what waits goes on to the lanes without queue delay.
  void Close();
  // Completes all that waits with `status`. The end of a drain that took too long, or of the last
  // lane.
  void Abort(const absl::Status& status);

  std::int64_t waiting_requests() const;
  // The time, since a batch was first taken, in which no taker waited in Take: a request that came
  // then had to wait, unless it was computed within Push. A taker that is called still waits, until
  // it wakes.
  Duration TimeWithoutTaker() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace normd

#endif  // NORMD_SERVER_BATCHING_BATCH_QUEUE_H_
