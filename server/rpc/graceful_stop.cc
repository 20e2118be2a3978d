#include "server/rpc/graceful_stop.h"

#include <algorithm>
#include <new>

#include "absl/status/status.h"
#include "server/rpc/server.h"
#include "spdlog/spdlog.h"

namespace normd {
namespace {

// The time for complete answers, and those of an abort, to leave the process.
constexpr Duration kGrace = std::chrono::seconds(1);
// Calls are refused for at least this long before gRPC shuts down, so that busy clients get our
// UNAVAILABLE, which they may retry elsewhere. A server that shuts down sends gRPC's CANCELLED.
constexpr Duration kRefusal = std::chrono::milliseconds(250);

// The interval at which the streams are checked for waiting only for their clients.
constexpr Duration kQuietCheck = std::chrono::milliseconds(100);

TimePoint Now() { return std::chrono::steady_clock::now(); }

}  // namespace

void GracefulStop::Signal() {
  {
    MutexLock lock(mutex_);
    ++signals_;
    changed_.SignalAll();
  }
  parts_.active.Recheck();
}

int GracefulStop::signals() const {
  MutexLock lock(mutex_);
  return signals_;
}

bool GracefulStop::WaitForSignals(int wanted, TimePoint until) {
  MutexLock lock(mutex_);
  while (signals_ < wanted && Now() < until) changed_.WaitUntil(mutex_, until);
  return signals_ >= wanted;
}

// Waits for the calls inside. False after the time limit or a second signal.
bool GracefulStop::Drain() {
  const absl::Status stopping = absl::UnavailableError("the server is stopping");
  const TimePoint begin = Now();
  const TimePoint end = begin + options_.drain_timeout;
  for (;;) {
    // First those without a header: their requests would be refused anyway.
    const TimePoint now = Now();
    const bool quiet = now - begin >= options_.stream_quiet;
    try {
      parts_.active.AbortQuietStreams(quiet ? now - options_.stream_quiet : TimePoint::min(),
                                      stopping);
    } catch (const std::bad_alloc&) {
      // The next round may find memory.
    }
    const TimePoint next = std::min(end, now + kQuietCheck);
    if (parts_.active.WaitNone(next, [this] { return signals() > 1; })) return true;
    if (signals() > 1 || Now() >= end) return false;
  }
}

GracefulStop::Outcome GracefulStop::Run() {
  WaitForSignals(1, kNever);
  parts_.readiness.Stop();
  spdlog::info("stopping: health is NOT_SERVING, serving on for {} ms",
               std::chrono::duration_cast<std::chrono::milliseconds>(options_.lame_duck).count());
  WaitForSignals(2, Now() + options_.lame_duck);
  parts_.admission.Close();
  parts_.on_drain();
  // Requests no longer wait for company. The queue stays open, because accepted streams still push
  // what they receive.
  parts_.queue.EndQueueDelay();
  spdlog::info("stopping: refusing new calls, finishing {}", parts_.active.count());
  if (Drain()) {
    WaitForSignals(2, Now() + kRefusal);
    parts_.on_close(kGrace);
    parts_.server.CloseConnections(kGrace);
    parts_.server.Shutdown(kGrace);
    return Outcome::kClean;
  }
  spdlog::warn("stopping: giving up {} calls after {}", parts_.active.count(),
               signals() > 1 ? "a second signal" : "the drain timeout");
  const absl::Status stopping = absl::UnavailableError("the server is stopping");
  try {
    parts_.active.AbortStreams(stopping);
  } catch (const std::bad_alloc&) {
    // The end of the process ends them.
  }
  // Closed first: a request admitted before and pushed after the abort would wait for ever.
  parts_.queue.Close();
  parts_.queue.Abort(stopping);
  // A call that is already in a lane may still finish.
  parts_.active.WaitNone(Now() + kGrace, [] { return false; });
  return Outcome::kAborted;
}

void RetireService(Readiness& readiness, Admission& admission, BatchQueue& queue) {
  readiness.Stop("the last lane has failed");
  admission.SetReady(false);
  // Closed first: a request admitted before and pushed after the abort would wait for ever.
  queue.Close();
  queue.Abort(absl::UnavailableError("the server has no working lane"));
}

}  // namespace normd
