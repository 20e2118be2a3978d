// Keeps the process alive when a client takes away shared memory.
//
// Anybody who can open a file of /dev/shm can shorten it, and a page of a mapping that the file no
// longer has raises SIGBUS in the thread that touches it: a lane, in the middle of a request. The
// guard's handler replaces the whole range by zeroed memory of the process and marks the range as
// broken; the thread continues, and users of the range check it afterwards. The same happens when
// the file system has no room for a page that is written for the first time.
//
// A SIGBUS elsewhere keeps its previous action, which by default ends the process.

#ifndef NORMD_SERVER_REGIONS_FAULT_GUARD_H_
#define NORMD_SERVER_REGIONS_FAULT_GUARD_H_

#include <atomic>
#include <cstddef>

namespace normd {

// The number of ranges that can be guarded at once.
inline constexpr std::size_t kMaxGuardedRanges = 65536;

// One mapped range, guarded while this lives. The mapping outlives it.
class FaultGuard {
 public:
  // Guards `size` bytes from `begin`, both multiples of a page. The first one in the process
  // installs the handler. Inactive when kMaxGuardedRanges are guarded.
  FaultGuard(std::byte* begin, std::size_t size);
  ~FaultGuard();
  FaultGuard(const FaultGuard&) = delete;
  FaultGuard& operator=(const FaultGuard&) = delete;

  bool active() const { return slot_ != kMaxGuardedRanges; }
  // Whether the process's own memory has replaced it. Relaxed order suffices: a user of the range
  // asks on the thread that touched it, or after an operation that orders that thread's work
  // before.
  bool broken() const { return broken_.load(std::memory_order_relaxed); }

 private:
  std::atomic<bool> broken_{false};
  std::size_t slot_;
};

}  // namespace normd

#endif  // NORMD_SERVER_REGIONS_FAULT_GUARD_H_
