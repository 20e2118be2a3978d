// One load run: sends the workload's requests at the arrivals' times, until the stop rule ends it,
// and measures.

#ifndef NORMD_CLIENT_LOAD_LOAD_RUN_H_
#define NORMD_CLIENT_LOAD_LOAD_RUN_H_

#include <cstdint>
#include <memory>

#include "client/load/arrivals.h"
#include "client/load/measurement.h"
#include "client/load/pacer.h"
#include "client/load/sender.h"
#include "client/load/stop_rule.h"
#include "client/load/workload.h"

namespace normd::load {

struct LoadOptions {
  // Null: closed loop; `concurrency` callers, each of which sends as soon as its last request is
  // answered. Otherwise open loop: requests leave at the arrivals' times whatever the server does.
  std::unique_ptr<Arrivals> arrivals;
  int concurrency = 1;
  // Open loop: sending waits while this many are unanswered. Times still count from the intended
  // send.
  int max_inflight = 16384;
  StopOptions stop;
  std::int64_t verify_every = 0;  // One response in so many is verified; 0: none.
  double cancel_share =
      0;  // The share of requests that the client cancels, so long after the send.
  Duration cancel_after{0};
  std::uint64_t seed = 1;  // For the choice from the mix and of the requests to cancel.
};

struct LoadResult {
  Measurement measured;
  StopReason reason = StopReason::kNone;
  // From the end of the warm-up to the last measured response, or until now while the run
  // continues.
  Duration elapsed{0};
  std::int64_t inflight = 0;
  // Open loop: requests whose time came before the end, but which still waited for room in flight
  // then. No other number includes them: the server is further behind than the times say.
  std::int64_t unsent = 0;
};

// Workers keep the statistics, each with a lock that only its own callers take, and they are merged
// on request. There are at most 64 workers: callers of a larger closed loop share them.
class LoadRun {
 public:
  // All references outlive the run.
  LoadRun(LoadOptions options, const Workload& workload, Sender& sender, Pacer& pacer);
  ~LoadRun();

  // Blocks until the run has stopped and every request is answered. Called once. Wakes come from
  // `pacer`; the caller's thread sends in an open loop, the sender's threads in a closed one.
  void Run();

  // Ends the run early: no more requests are sent. The first reason is kept. Thread-safe.
  void Stop(StopReason reason);

  // The state at this moment. Thread-safe.
  LoadResult Snapshot() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace normd::load

#endif  // NORMD_CLIENT_LOAD_LOAD_RUN_H_
