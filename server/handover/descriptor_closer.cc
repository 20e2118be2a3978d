#include "server/handover/descriptor_closer.h"

#include <sys/socket.h>

#include <chrono>
#include <limits>
#include <utility>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/task_thread.h"

namespace normd {
namespace {

constexpr Duration kLastWait = std::chrono::seconds(1);

}  // namespace

struct DescriptorCloser::State {
  Mutex mutex;
  CondVar changed;
  std::size_t waiting ABSL_GUARDED_BY(mutex) = 0;  // Includes the one that is being closed.
  TaskThread thread{"closer",
                    std::numeric_limits<std::size_t>::max()};  // Last: it uses the others.
};

DescriptorCloser::DescriptorCloser() : state_(std::make_unique<State>()) {}

DescriptorCloser::~DescriptorCloser() {
  const TimePoint deadline = std::chrono::steady_clock::now() + kLastWait;
  MutexLock lock(state_->mutex);
  while (state_->waiting > 0 && std::chrono::steady_clock::now() < deadline) {
    state_->changed.WaitUntil(state_->mutex, deadline);
  }
  if (state_->waiting > 0) static_cast<void>(state_.release());
}

void DescriptorCloser::Close(std::vector<Descriptor> descriptors) {
  if (descriptors.empty()) return;
  // Only options of the socket itself: sockets that a unix socket carries keep theirs.
  constexpr linger kAtOnce = {1, 0};
  for (const Descriptor& descriptor : descriptors) {
    (void)setsockopt(descriptor.get(), SOL_SOCKET, SO_LINGER, &kAtOnce, sizeof(kAtOnce));
  }
  MutexLock lock(state_->mutex);
  for (Descriptor& descriptor : descriptors) {
    state_->thread.Submit([state = state_.get(), closed = std::move(descriptor)]() mutable {
      closed.Reset();
      MutexLock task_lock(state->mutex);
      --state->waiting;
      state->changed.SignalAll();
    });
    ++state_->waiting;
  }
}

std::size_t DescriptorCloser::waiting() const {
  MutexLock lock(state_->mutex);
  return state_->waiting;
}

}  // namespace normd
