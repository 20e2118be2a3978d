#include "tests/support/fake_page_locker.h"

#include <sys/mman.h>

#include <cstdlib>
#include <utility>

namespace normd::testing {

void FakePageLocker::Fail(absl::Status status) {
  MutexLock lock(mutex_);
  status_ = std::move(status);
}

void FakePageLocker::Hold() {
  MutexLock lock(mutex_);
  hold_ = true;
}

void FakePageLocker::Release() {
  MutexLock lock(mutex_);
  hold_ = false;
  changed_.SignalAll();
}

void FakePageLocker::WaitForHeld() {
  MutexLock lock(mutex_);
  while (held_ == 0) changed_.Wait(mutex_);
}

void FakePageLocker::WaitForCalls(int calls) {
  MutexLock lock(mutex_);
  while (calls_ < calls) changed_.Wait(mutex_);
}

int FakePageLocker::locked() const {
  MutexLock lock(mutex_);
  return static_cast<int>(ranges_.size());
}

int FakePageLocker::unlocks() const {
  MutexLock lock(mutex_);
  return unlocks_;
}

bool FakePageLocker::writable_all() const {
  MutexLock lock(mutex_);
  return writable_all_;
}

void FakePageLocker::Touch(const std::byte* data, std::size_t bytes) {
  MutexLock lock(mutex_);
  for (const auto& [begin, size] : ranges_) {
    if (data < begin || data + bytes > begin + size) continue;
    touched_bytes_ += static_cast<std::int64_t>(bytes);
    return;
  }
  touched_pageable_bytes_ += static_cast<std::int64_t>(bytes);
}

std::int64_t FakePageLocker::touched_bytes() const {
  MutexLock lock(mutex_);
  return touched_bytes_;
}

std::int64_t FakePageLocker::touched_pageable_bytes() const {
  MutexLock lock(mutex_);
  return touched_pageable_bytes_;
}

absl::Status FakePageLocker::Lock(std::byte* begin, std::size_t bytes, bool writable) {
  MutexLock lock(mutex_);
  ++held_;
  changed_.SignalAll();
  while (hold_) changed_.Wait(mutex_);
  --held_;
  ++calls_;
  changed_.SignalAll();
  if (!status_.ok()) return status_;
  if (!ranges_.emplace(begin, bytes).second) std::abort();  // It was unmapped while it was locked.
  writable_all_ = writable_all_ && writable;
  return absl::OkStatus();
}

void FakePageLocker::Unlock(std::byte* begin) {
  MutexLock lock(mutex_);
  const auto found = ranges_.find(begin);
  // Only what is mapped can be protected.
  if (found == ranges_.end() || mprotect(begin, found->second, PROT_NONE) != 0) std::abort();
  ranges_.erase(found);
  ++unlocks_;
}

}  // namespace normd::testing
