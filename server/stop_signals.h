// The signals that stop the server, the one that has it look at its files, and those that would end
// it without a drain. deploy/README.md has the table.

#ifndef NORMD_SERVER_STOP_SIGNALS_H_
#define NORMD_SERVER_STOP_SIGNALS_H_

#include <atomic>
#include <functional>
#include <thread>

#include "server/rpc/graceful_stop.h"

namespace normd {

// Blocks every signal whose default would end the process, but for faults, in this thread and all
// that it starts. Where something else has taken a signal that stops nothing, or has it ignored, it
// stays so: a profiler's timer, nohup. To be called before any thread of ours exists.
void BlockStopSignals();

// Passes stop signals on to `stop` from a thread of its own, calls `reload` there for each SIGHUP,
// and logs the other ones. They are blocked in every thread of ours (BlockStopSignals).
class SignalThread {
 public:
  // `stop` outlives it. `reload` must not block.
  SignalThread(GracefulStop& stop, std::function<void()> reload);
  ~SignalThread();
  SignalThread(const SignalThread&) = delete;
  SignalThread& operator=(const SignalThread&) = delete;

 private:
  void Loop(GracefulStop& stop);

  const std::function<void()> reload_;
  std::atomic<bool> ending_{false};
  std::thread thread_;  // Last: it uses the flag.
};

}  // namespace normd

#endif  // NORMD_SERVER_STOP_SIGNALS_H_
