#include "server/rpc/graceful_stop.h"

#include "absl/status/status.h"
#include "spdlog/spdlog.h"

namespace normd {
namespace {

// For answers that are complete to leave the process, and for those that an abort made.
constexpr Duration kGrace = std::chrono::seconds(1);
// Calls are refused for at least this long before gRPC shuts down: a busy client then meets our
// UNAVAILABLE, which it may retry elsewhere. From a server that shuts down it would get gRPC's
// CANCELLED.
constexpr Duration kRefusal = std::chrono::milliseconds(250);

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

GracefulStop::Outcome GracefulStop::Run() {
  WaitForSignals(1, kNever);
  parts_.readiness.Stop();
  spdlog::info("stopping: health is NOT_SERVING, serving on for {} ms",
               std::chrono::duration_cast<std::chrono::milliseconds>(options_.lame_duck).count());
  WaitForSignals(2, Now() + options_.lame_duck);
  parts_.admission.Close();
  // What waits for company waits no longer. The queue stays open: streams that were accepted push
  // what they have still to receive.
  parts_.queue.EndQueueDelay();
  const TimePoint refusing_since = Now();
  spdlog::info("stopping: refusing new calls, finishing {}", parts_.active.count());
  if (parts_.active.WaitNone(refusing_since + options_.drain_timeout,
                             [this] { return signals() > 1; })) {
    WaitForSignals(2, refusing_since + kRefusal);
    parts_.server.Shutdown(kGrace);
    return Outcome::kClean;
  }
  spdlog::warn("stopping: giving up {} calls after {}", parts_.active.count(),
               signals() > 1 ? "a second signal" : "the drain timeout");
  const absl::Status stopping = absl::UnavailableError("the server is stopping");
  parts_.active.AbortStreams(stopping);
  // Closed first: whoever was admitted before and pushes after the abort would wait for ever.
  parts_.queue.Close();
  parts_.queue.Abort(stopping);
  // A call that is already in a lane may still make it.
  parts_.active.WaitNone(Now() + kGrace, [] { return false; });
  return Outcome::kAborted;
}

void RetireService(Readiness& readiness, Admission& admission, BatchQueue& queue) {
  readiness.Stop();
  admission.SetReady(false);
  // Closed first: whoever was admitted before and pushes after the abort would wait for ever.
  queue.Close();
  queue.Abort(absl::UnavailableError("the server has no working lane"));
}

}  // namespace normd
