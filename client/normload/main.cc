#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "client/normload/normload.h"

namespace {

// Waits for SIGINT and SIGTERM, without a handler.
class Signals final : public normd::load::Interrupts {
 public:
  // Must run before any other thread starts: threads inherit the blocked signals.
  Signals() {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGINT);
    sigaddset(&signals_, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
  }

  bool Wait(normd::Duration limit) override {
    timespec time = {};
    time.tv_sec = limit.count() / 1000000000;
    time.tv_nsec = limit.count() % 1000000000;
    if (sigtimedwait(&signals_, nullptr, &time) < 0) return false;
    // A user who asks twice does not want to wait for the pending responses.
    if (interrupted_) _exit(130);
    interrupted_ = true;
    return true;
  }

 private:
  sigset_t signals_;
  bool interrupted_ = false;
};

}  // namespace

int main(int argc, char** argv) {
  // Each error ends in one message; gRPC's own lines would come beside it.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  // Debian's abseil looks for deadlocks at each lock that gRPC takes, which costs some percent of a
  // call.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  Signals signals;
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  return normd::load::RunNormload(arguments, signals, std::cout, std::cerr,
                                  isatty(STDERR_FILENO) != 0);
}
