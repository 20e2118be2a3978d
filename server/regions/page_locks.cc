#include "server/regions/page_locks.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "spdlog/spdlog.h"

namespace normd {
namespace {

constexpr Duration kLogInterval = std::chrono::seconds(10);

}  // namespace

MappedPages::~MappedPages() { munmap(begin_, bytes_); }

PageLocks::PageLocks(PageLocker& locker, const PageLockLimits& limits, RegionMetrics& metrics,
                     const Clock& clock)
    : locker_(locker),
      limits_(limits),
      metrics_(metrics),
      clock_(clock),
      thread_([this] { Loop(); }),
      waits_thread_([this] { EndLateWaits(); }) {
  pthread_setname_np(thread_.native_handle(), "page_locks");
  pthread_setname_np(waits_thread_.native_handle(), "page_lock_waits");
}

PageLocks::~PageLocks() {
  {
    MutexLock lock(mutex_);
    closed_ = true;
    changed_.SignalOne();
    waits_changed_.SignalOne();
  }
  thread_.join();
  waits_thread_.join();
}

bool PageLocks::Add(const std::shared_ptr<MappedPages>& pages, const std::string& owner,
                    LockWait wait) {
  const auto bytes = static_cast<std::int64_t>(pages->bytes());
  {
    MutexLock lock(mutex_);
    const auto found = owner_bytes_.find(owner);
    const std::int64_t owned = found == owner_bytes_.end() ? 0 : found->second;
    if (regions_ < limits_.max_regions && bytes <= limits_.max_bytes - bytes_ &&
        bytes <= limits_.max_owner_bytes - owned) {
      // What may throw comes first: a wait without its region ends in time.
      std::int64_t& of_owner = owner_bytes_[owner];
      ++last_id_;
      if (wait.until != nullptr) {
        wait.by = std::min(wait.by, SteadyClock().Now() + limits_.max_wait);
        waits_.emplace(last_id_, std::move(wait));
        waits_changed_.SignalOne();
      }
      waiting_.push_back({last_id_, pages});
      ++regions_;
      bytes_ += bytes;
      of_owner += bytes;
      changed_.SignalOne();
      return true;
    }
  }
  metrics_.RecordNotLocked(PageLockRefusal::kLimit);
  return false;
}

void PageLocks::Release(std::list<Released> released) {
  MutexLock lock(mutex_);
  released_.splice(released_.end(), released);
  changed_.SignalOne();
}

// Released regions go first: a client may wait for their end, and the limits need their share.
void PageLocks::Loop() {
  for (;;) {
    std::optional<Released> released;
    Waiting next;
    {
      MutexLock lock(mutex_);
      while (!closed_ && released_.empty() && waiting_.empty()) changed_.Wait(mutex_);
      if (!released_.empty()) {
        released = std::move(released_.front());
        released_.pop_front();
      } else if (!waiting_.empty()) {
        next = std::move(waiting_.front());
        waiting_.pop_front();
      } else {
        return;
      }
    }
    if (released.has_value()) End(*std::move(released));
    if (const auto pages = next.pages.lock(); pages != nullptr) Lock(*pages);
    if (next.id != 0) EndWait(next.id);
  }
}

void PageLocks::EndWait(std::uint64_t id) {
  LockWait ended;  // Dropped after the lock: waiters then continue.
  MutexLock lock(mutex_);
  const auto found = waits_.find(id);
  if (found == waits_.end()) return;
  ended = std::move(found->second);
  waits_.erase(found);
}

void PageLocks::EndLateWaits() {
  const SteadyClock clock;
  MutexLock lock(mutex_);
  while (!closed_) {
    const auto first =
        std::min_element(waits_.begin(), waits_.end(),
                         [](const auto& a, const auto& b) { return a.second.by < b.second.by; });
    const TimePoint by = first == waits_.end() ? kNever : first->second.by;
    if (clock.Now() < by) {
      waits_changed_.WaitUntil(mutex_, by);
      continue;
    }
    LockWait late = std::move(first->second);
    waits_.erase(first);
    mutex_.Unlock();
    metrics_.RecordNotLocked(PageLockRefusal::kLate);
    if (IsDue(late_)) {
      spdlog::warn(
          "shared memory: {} regions were not locked for the devices in time since the last such "
          "line; requests use them unlocked until they are",
          std::exchange(late_.count, 0));
    }
    late = {};  // Waiters then continue.
    mutex_.Lock();
  }
}

void PageLocks::Lock(MappedPages& pages) {
  const absl::Status status = locker_.Lock(pages.begin(), pages.bytes(), pages.writable());
  if (!status.ok()) {
    metrics_.RecordNotLocked(PageLockRefusal::kDriver);
    return LogRefused(pages, status);
  }
  pages.locked_.store(true, std::memory_order_release);
  metrics_.AddLocked(static_cast<std::int64_t>(pages.bytes()));
}

// Logs one in ten seconds of the many regions that clients may register.
bool PageLocks::IsDue(Line& line) const {
  ++line.count;
  const TimePoint now = clock_.Now();
  if (now < line.next) return false;
  line.next = now + kLogInterval;
  return true;
}

void PageLocks::LogRefused(const MappedPages& pages, const absl::Status& status) {
  if (!IsDue(refused_)) return;
  spdlog::warn(
      "shared memory: {} regions were not locked for the devices since the last such line, the "
      "last, of {} bytes: {}",
      std::exchange(refused_.count, 0), pages.bytes(), std::string(status.message()));
}

void PageLocks::End(Released released) {
  const auto bytes = static_cast<std::int64_t>(released.pages->bytes());
  if (released.pages->locked()) {
    locker_.Unlock(released.pages->begin());
    metrics_.AddLocked(-bytes);
  }
  released.pages.reset();
  {
    MutexLock lock(mutex_);
    --regions_;
    bytes_ -= bytes;
    const auto owned = owner_bytes_.find(released.owner);
    owned->second -= bytes;
    if (owned->second == 0) owner_bytes_.erase(owned);
  }
  released.kept.clear();
}

}  // namespace normd
