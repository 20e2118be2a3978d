#include "server/rpc/graceful_stop.h"

#include "absl/status/status.h"
#include "spdlog/spdlog.h"

namespace normd {
namespace {

// For answers that are complete to leave the process, and for those that an abort made.
constexpr Duration kGrace = std::chrono::seconds(1);

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
  bool clean = !WaitForSignals(2, Now() + options_.lame_duck);
  parts_.admission.Close();
  if (clean) {
    spdlog::info("stopping: refusing new calls, finishing {}", parts_.active.count());
    clean =
        parts_.active.WaitNone(Now() + options_.drain_timeout, [this] { return signals() > 1; });
  }
  if (clean) {
    parts_.server.Shutdown(kGrace);
    return Outcome::kClean;
  }
  spdlog::warn("stopping: giving up {} calls after {}", parts_.active.count(),
               signals() > 1 ? "a second signal" : "the drain timeout");
  parts_.queue.Close();
  parts_.queue.Abort(absl::UnavailableError("the server is stopping"));
  // A call that is already in a lane may still make it.
  parts_.active.WaitNone(Now() + kGrace, [] { return false; });
  return Outcome::kAborted;
}

}  // namespace normd
