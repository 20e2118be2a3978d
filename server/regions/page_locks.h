// The pages of clients' regions that are locked for devices, and the thread that locks them.
//
// Locking a region takes longer than most requests, and seconds while requests use it. So a
// registration waits for it, for a bounded time, and requests find the region locked. No request
// waits: earlier ones are computed without the lock. The thread also unmaps the regions that it has
// locked.

#ifndef NORMD_SERVER_REGIONS_PAGE_LOCKS_H_
#define NORMD_SERVER_REGIONS_PAGE_LOCKS_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/page_locker.h"
#include "server/metrics/handles.h"

namespace normd {

// Whole pages, which this object unmaps.
class MappedPages {
 public:
  MappedPages(std::byte* begin, std::size_t bytes, bool writable)
      : begin_(begin), bytes_(bytes), writable_(writable) {}
  ~MappedPages();
  MappedPages(const MappedPages&) = delete;
  MappedPages& operator=(const MappedPages&) = delete;

  std::byte* begin() const { return begin_; }
  std::size_t bytes() const { return bytes_; }
  bool writable() const { return writable_; }
  // Once true it stays so until PageLocks::Release. Acquire: the reader comes after the driver's
  // call.
  bool locked() const { return locked_.load(std::memory_order_acquire); }

 private:
  friend class PageLocks;

  std::byte* const begin_;
  const std::size_t bytes_;
  const bool writable_;
  std::atomic<bool> locked_{false};
};

// Limits of locked and waiting pages. Pages beyond a limit are not locked, and work nevertheless.
struct PageLockLimits {
  std::int64_t max_bytes = std::int64_t{8} << 30;
  std::int64_t max_owner_bytes = std::int64_t{4} << 30;
  std::int64_t max_regions = 65536;  // The file of a named region stays open while it is locked.
  Duration max_wait = std::chrono::milliseconds(1500);  // The limit of LockWait.
};

// Waits until pages are locked.
struct LockWait {
  // Released when the pages are locked, when they will not be, and after PageLockLimits::max_wait.
  // shared: with the users that wait for its end.
  std::shared_ptr<void> until;
  TimePoint by = kNever;  // Likewise; on the steady clock.
};

// Thread-safe. No lock is held while pages are locked, unlocked or unmapped.
class PageLocks {
 public:
  // Pages that nothing uses any more.
  struct Released {
    std::shared_ptr<MappedPages> pages;  // shared: by now with nobody else.
    std::string owner;
    std::vector<std::shared_ptr<void>> kept;  // Dropped when they are unmapped.
  };

  // `locker`, `metrics` and `clock`, which is for the log, outlive it.
  PageLocks(PageLocker& locker, const PageLockLimits& limits, RegionMetrics& metrics,
            const Clock& clock);
  // All added pages have been released by now. Waits until they are unmapped.
  ~PageLocks();
  PageLocks(const PageLocks&) = delete;
  PageLocks& operator=(const PageLocks&) = delete;

  // Queues the pages to be locked by the thread, in order. False beyond a limit: they are not
  // locked, nor released. shared: with the thread, while it locks them.
  bool Add(const std::shared_ptr<MappedPages>& pages, const std::string& owner, LockWait wait = {});

  // Makes the thread unlock and unmap them, before it locks any others. The list has been made
  // before, so that this needs no memory.
  void Release(std::list<Released> released);

 private:
  struct Waiting {
    std::uint64_t id = 0;
    std::weak_ptr<MappedPages> pages;  // Gone if they were released before their turn.
  };
  // A log line that stands for many. One thread's.
  struct Line {
    std::int64_t count = 0;  // Since the last one.
    TimePoint next{};
  };

  void Loop();
  void Lock(MappedPages& pages);
  void EndWait(std::uint64_t id);
  void EndLateWaits();
  bool IsDue(Line& line) const;
  void LogRefused(const MappedPages& pages, const absl::Status& status);
  void End(Released released);

  PageLocker& locker_;
  const PageLockLimits limits_;
  RegionMetrics& metrics_;
  const Clock& clock_;
  Line refused_;  // By the driver.
  Line late_;
  Mutex mutex_;
  CondVar changed_;
  CondVar waits_changed_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::int64_t regions_ ABSL_GUARDED_BY(mutex_) = 0;
  // (abseil's hash map is broken once it has found no memory to grow.)
  std::map<std::string, std::int64_t> owner_bytes_ ABSL_GUARDED_BY(mutex_);
  std::uint64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);  // To be locked.
  std::map<std::uint64_t, LockWait> waits_ ABSL_GUARDED_BY(mutex_);
  std::list<Released> released_ ABSL_GUARDED_BY(mutex_);
  // Last: they use all of the above.
  std::thread thread_;
  std::thread waits_thread_;  // The other thread may be in the driver for long.
};

}  // namespace normd

#endif  // NORMD_SERVER_REGIONS_PAGE_LOCKS_H_
