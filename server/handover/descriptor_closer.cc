#include "server/handover/descriptor_closer.h"

#include <pthread.h>
#include <sys/socket.h>

#include <chrono>
#include <deque>
#include <utility>

#include "base/clock.h"
#include "base/mutex.h"

namespace normd {
namespace {

constexpr Duration kLastWait = std::chrono::seconds(1);

}  // namespace

struct DescriptorCloser::State {
  Mutex mutex;
  CondVar changed;
  std::size_t waiting ABSL_GUARDED_BY(mutex) = 0;  // Includes the one that is being closed.
  bool closed ABSL_GUARDED_BY(mutex) = false;
  std::deque<Descriptor> descriptors ABSL_GUARDED_BY(mutex);
};

DescriptorCloser::DescriptorCloser()
    : state_(std::make_shared<State>()), thread_([state = state_] { Loop(state); }) {
  pthread_setname_np(thread_.native_handle(), "closer");
}

DescriptorCloser::~DescriptorCloser() {
  const TimePoint deadline = std::chrono::steady_clock::now() + kLastWait;
  bool done = false;
  {
    MutexLock lock(state_->mutex);
    state_->closed = true;
    state_->changed.SignalAll();
    while (state_->waiting > 0 && std::chrono::steady_clock::now() < deadline) {
      state_->changed.WaitUntil(state_->mutex, deadline);
    }
    done = state_->waiting == 0;
  }
  if (done) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

void DescriptorCloser::Close(std::vector<Descriptor> descriptors) {
  if (descriptors.empty()) return;
  // Only options of the socket itself: sockets that a unix socket carries keep theirs.
  constexpr linger kAtOnce = {1, 0};
  for (const Descriptor& descriptor : descriptors) {
    (void)setsockopt(descriptor.get(), SOL_SOCKET, SO_LINGER, &kAtOnce, sizeof(kAtOnce));
  }
  MutexLock lock(state_->mutex);
  state_->changed.SignalAll();
  for (Descriptor& descriptor : descriptors) {
    state_->descriptors.push_back(std::move(descriptor));
    ++state_->waiting;
  }
}

std::size_t DescriptorCloser::waiting() const {
  MutexLock lock(state_->mutex);
  return state_->waiting;
}

void DescriptorCloser::Loop(const std::shared_ptr<State>& state) {
  for (;;) {
    Descriptor next;
    {
      MutexLock lock(state->mutex);
      while (!state->closed && state->descriptors.empty()) state->changed.Wait(state->mutex);
      if (state->descriptors.empty()) return;
      next = std::move(state->descriptors.front());
      state->descriptors.pop_front();
    }
    next.Reset();
    MutexLock lock(state->mutex);
    --state->waiting;
    state->changed.SignalAll();
  }
}

}  // namespace normd
