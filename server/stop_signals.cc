#include "server/stop_signals.h"

#include <signal.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/net/service_manager.h"
#include "spdlog/spdlog.h"

namespace normd {
namespace {

// Wakes the thread that waits for signals when it is to end, and does nothing from outside.
constexpr int kWake = SIGUSR1;

bool Stops(int signal) {
  switch (signal) {
    case SIGTERM:
    case SIGINT:
    case SIGQUIT:
    case SIGPWR:
    case SIGXCPU: return true;
    default: return false;
  }
}

constexpr int kReload = SIGHUP;

// Asks for nothing here; its default would end the process.
bool IsIgnored(int signal) {
  switch (signal) {
    case SIGUSR1:
    case SIGUSR2:
    case SIGALRM:
    case SIGVTALRM:
    case SIGPROF:
    case SIGIO:
    case SIGSTKFLT: return true;
    default: return signal >= SIGRTMIN;
  }
}

std::string NameOf(int signal) {
  const char* const name = sigabbrev_np(signal);
  if (name != nullptr) return absl::StrCat("SIG", name);
  return absl::StrCat("SIGRTMIN+", signal - SIGRTMIN);
}

// Runs on a thread that does not block the signal: one that a profiler or a sanitizer started
// before main. It blocks the signal from then on, and the signal goes to the next thread.
void SendOn(int signal, siginfo_t*, void* context) {
  sigaddset(&static_cast<ucontext_t*>(context)->uc_sigmask, signal);
  kill(getpid(), signal);
}

// The signals that BlockStopSignals has taken.
sigset_t TakenSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (int signal = 1; signal <= SIGRTMAX; ++signal) {
    struct sigaction action = {};
    if (sigaction(signal, nullptr, &action) == 0 && action.sa_sigaction == SendOn) {
      sigaddset(&set, signal);
    }
  }
  return set;
}

}  // namespace

void BlockStopSignals() {
  struct sigaction action = {};
  action.sa_sigaction = SendOn;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  for (int signal = 1; signal <= SIGRTMAX; ++signal) {
    struct sigaction before = {};
    if (sigaction(signal, nullptr, &before) != 0) continue;  // The C library's own.
    const bool is_free = before.sa_handler == SIG_DFL;
    const bool may_be_taken = signal == kReload || IsIgnored(signal);
    if (Stops(signal) || signal == kWake || (may_be_taken && is_free)) {
      sigaction(signal, &action, nullptr);
    }
  }
  const sigset_t set = TakenSignals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

SignalThread::SignalThread(GracefulStop& stop, std::function<void()> reload)
    : reload_(std::move(reload)), thread_([this, &stop] { Loop(stop); }) {}

SignalThread::~SignalThread() {
  ending_ = true;
  pthread_kill(thread_.native_handle(), kWake);
  thread_.join();
}

void SignalThread::Loop(GracefulStop& stop) {
  const sigset_t set = TakenSignals();
  bool past_cpu_limit = false;
  int signal = 0;
  while (sigwait(&set, &signal) == 0 && !ending_) {
    if (signal == kReload) {
      reload_();
      continue;
    }
    if (!Stops(signal)) {
      spdlog::info("received {}, which is ignored", NameOf(signal));
      continue;
    }
    // It comes again in each second of processor time, and is not meant as a second signal.
    if (signal == SIGXCPU && std::exchange(past_cpu_limit, true)) continue;
    spdlog::info("received {}", NameOf(signal));
    NotifyServiceManager("STOPPING=1");
    stop.Signal();
  }
}

}  // namespace normd
