// The pages of clients' regions that are locked for devices, and the thread that locks them.
//
// To lock a region takes longer than most requests, so no call and no request waits for it:
// requests that come before are computed as without it. The thread also unmaps what it has locked.

#ifndef NORMD_SERVER_REGIONS_PAGE_LOCKS_H_
#define NORMD_SERVER_REGIONS_PAGE_LOCKS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/page_locker.h"
#include "server/metrics/handles.h"

namespace normd {

// Whole pages, which it unmaps.
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
  // Once true it stays so until PageLocks::Release. Acquire: who sees it comes after the driver's
  // call.
  bool locked() const { return locked_.load(std::memory_order_acquire); }

 private:
  friend class PageLocks;

  std::byte* const begin_;
  const std::size_t bytes_;
  const bool writable_;
  std::atomic<bool> locked_{false};
};

// Of what is locked or is to be. What is beyond a limit is not locked, and works nevertheless.
struct PageLockLimits {
  std::int64_t max_bytes = std::int64_t{8} << 30;
  std::int64_t max_owner_bytes = std::int64_t{4} << 30;
  std::int64_t max_regions = 65536;  // A named one's file stays open while it is locked.
};

// Thread-safe. No lock is held while pages are locked, unlocked or unmapped.
class PageLocks {
 public:
  using KeptThings = std::vector<std::shared_ptr<void>>;

  // `locker`, `metrics` and `clock`, which is for the log, outlive it.
  PageLocks(PageLocker& locker, const PageLockLimits& limits, RegionMetrics& metrics,
            const Clock& clock);
  // All that was added is released by now. Waits until it is unmapped.
  ~PageLocks();
  PageLocks(const PageLocks&) = delete;
  PageLocks& operator=(const PageLocks&) = delete;

  // Has the thread lock them, in the order in which they come. False beyond a limit: they are not
  // locked, nor released. shared: with the thread, while it locks them.
  bool Add(const std::shared_ptr<MappedPages>& pages, const std::string& owner);

  // Has the thread unlock and unmap them, before it locks any others, and then let go of `kept`.
  // Nothing uses them any more.
  void Release(std::shared_ptr<MappedPages> pages, const std::string& owner, KeptThings kept);

 private:
  struct Released {
    std::shared_ptr<MappedPages> pages;  // shared: by now with nobody else.
    std::string owner;
    KeptThings kept;
  };

  void Loop();
  void Lock(MappedPages& pages);
  void LogRefused(const MappedPages& pages, const absl::Status& status);
  void End(Released released);

  PageLocker& locker_;
  const PageLockLimits limits_;
  RegionMetrics& metrics_;
  const Clock& clock_;
  std::int64_t refused_ = 0;  // By the driver since the last line of the log; the thread's.
  TimePoint next_line_{};
  Mutex mutex_;
  CondVar changed_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::int64_t regions_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<std::string, std::int64_t> owner_bytes_ ABSL_GUARDED_BY(mutex_);
  // To be locked; gone where they were released before their turn.
  std::deque<std::weak_ptr<MappedPages>> waiting_ ABSL_GUARDED_BY(mutex_);
  std::deque<Released> released_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;  // Last: it uses all of the above.
};

}  // namespace normd

#endif  // NORMD_SERVER_REGIONS_PAGE_LOCKS_H_
