#include "server/stop_signals.h"

#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#include "server/net/service_manager.h"
#include "spdlog/spdlog.h"

namespace normd {
namespace {

// SIGTERM and SIGINT stop the server; the third wakes the thread that waits for them when it is to
// end, and does nothing when it comes from outside.
sigset_t StopSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) sigaddset(&set, signal);
  return set;
}

// Runs on a thread that does not block the signal: one that a profiler or a sanitizer started
// before main. It blocks the signal from then on, and the signal goes to the next thread.
void SendOn(int signal, siginfo_t*, void* context) {
  sigaddset(&static_cast<ucontext_t*>(context)->uc_sigmask, signal);
  kill(getpid(), signal);
}

}  // namespace

void BlockStopSignals() {
  const sigset_t set = StopSignals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  struct sigaction action = {};
  action.sa_sigaction = SendOn;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) sigaction(signal, &action, nullptr);
}

SignalThread::SignalThread(GracefulStop& stop) : thread_([this, &stop] { Loop(stop); }) {}

SignalThread::~SignalThread() {
  ending_ = true;
  pthread_kill(thread_.native_handle(), SIGUSR1);
  thread_.join();
}

void SignalThread::Loop(GracefulStop& stop) {
  const sigset_t set = StopSignals();
  int signal = 0;
  while (sigwait(&set, &signal) == 0 && !ending_) {
    if (signal == SIGUSR1) continue;
    spdlog::info("received {}", signal == SIGTERM ? "SIGTERM" : "SIGINT");
    NotifyServiceManager("STOPPING=1");
    stop.Signal();
  }
}

}  // namespace normd
