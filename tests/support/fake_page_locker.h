// Page-locking without a driver. What is unlocked cannot be touched any more, and what is unmapped
// before it is unlocked ends the test.

#ifndef NORMD_TESTS_SUPPORT_FAKE_PAGE_LOCKER_H_
#define NORMD_TESTS_SUPPORT_FAKE_PAGE_LOCKER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "base/page_locker.h"

namespace normd::testing {

// Thread-safe.
class FakePageLocker final : public PageLocker {
 public:
  // From now on Lock returns this.
  void Fail(absl::Status status);
  // From now on Lock does not return, until Release.
  void Hold();
  void Release();
  // Until a call of Lock is held.
  void WaitForHeld();
  // Until so many calls of Lock have returned since the beginning.
  void WaitForCalls(int calls);

  int locked() const;         // Ranges at present.
  int unlocks() const;        // Calls so far.
  bool writable_all() const;  // Whether all calls of Lock were for writing.
  // Notes that a device touches these bytes, locked or not.
  void Touch(const std::byte* data, std::size_t bytes);
  std::int64_t touched_bytes() const;           // Locked ones,
  std::int64_t touched_pageable_bytes() const;  // and others.

  absl::Status Lock(std::byte* begin, std::size_t bytes, bool writable) override;
  void Unlock(std::byte* begin) override;

 private:
  mutable Mutex mutex_;
  CondVar changed_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  bool hold_ ABSL_GUARDED_BY(mutex_) = false;
  int held_ ABSL_GUARDED_BY(mutex_) = 0;
  int calls_ ABSL_GUARDED_BY(mutex_) = 0;
  int unlocks_ ABSL_GUARDED_BY(mutex_) = 0;
  bool writable_all_ ABSL_GUARDED_BY(mutex_) = true;
  std::int64_t touched_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::int64_t touched_pageable_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::byte*, std::size_t> ranges_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace normd::testing

#endif  // NORMD_TESTS_SUPPORT_FAKE_PAGE_LOCKER_H_
