#include "server/accept/active_calls.h"

#include <chrono>
#include <utility>

namespace normd {

void ActiveCalls::Leave() {
  if (count_.fetch_sub(1) == 1 && waiting_.load()) Recheck();
}

void ActiveCalls::Add(const std::shared_ptr<Stream>& stream) {
  MutexLock lock(streams_mutex_);
  streams_.emplace(stream.get(), stream);
}

void ActiveCalls::Remove(Stream* stream) {
  MutexLock lock(streams_mutex_);
  streams_.erase(stream);
}

void ActiveCalls::AbortStreams(const absl::Status& status) {
  for (const std::shared_ptr<Stream>& stream : Streams()) stream->Abort(status);
}

void ActiveCalls::AbortQuietStreams(TimePoint quiet_since, const absl::Status& status) {
  for (const std::shared_ptr<Stream>& stream : Streams()) stream->AbortIfQuiet(quiet_since, status);
}

std::vector<std::shared_ptr<ActiveCalls::Stream>> ActiveCalls::Streams() {
  std::vector<std::shared_ptr<Stream>> streams;
  MutexLock lock(streams_mutex_);
  streams.reserve(streams_.size());  // Else a last reference could end here, and take the lock.
  for (const auto& [key, weak] : streams_) {
    if (std::shared_ptr<Stream> stream = weak.lock()) streams.push_back(std::move(stream));
  }
  return streams;
}

bool ActiveCalls::WaitNone(TimePoint until, absl::FunctionRef<bool()> give_up) {
  MutexLock lock(mutex_);
  waiting_.store(true);
  bool none = count_.load() == 0;
  while (!none && !give_up() && std::chrono::steady_clock::now() < until) {
    changed_.WaitUntil(mutex_, until);
    none = count_.load() == 0;
  }
  waiting_.store(false);
  return none;
}

void ActiveCalls::Recheck() {
  MutexLock lock(mutex_);
  changed_.SignalAll();
}

}  // namespace normd
