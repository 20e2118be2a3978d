// Keeps the process alive when a client takes the memory away that it shares.
//
// Whoever can open a file of /dev/shm can shorten it, and a page of a mapping that the file no
// longer has raises SIGBUS in the thread that touches it: a lane, in the middle of a request. The
// guard's handler puts zeroed memory of the process's own in the place of the whole range and marks
// the range as broken; the thread goes on, and whoever uses the range asks afterwards. The same
// happens when the file system has no room for a page that is written for the first time.
//
// A SIGBUS anywhere else keeps the action that it had before, which by default ends the process.

#ifndef NORMD_SERVER_REGIONS_FAULT_GUARD_H_
#define NORMD_SERVER_REGIONS_FAULT_GUARD_H_

#include <atomic>
#include <cstddef>

namespace normd {

// How many ranges can be guarded at once.
inline constexpr std::size_t kMaxGuardedRanges = 65536;

// One mapped range, guarded while this lives. The mapping outlives it.
class FaultGuard {
 public:
  // Of `size` bytes from `begin`, both multiples of a page. Installs the handler the first time in
  // the process. Inactive when kMaxGuardedRanges are guarded.
  FaultGuard(std::byte* begin, std::size_t size);
  ~FaultGuard();
  FaultGuard(const FaultGuard&) = delete;
  FaultGuard& operator=(const FaultGuard&) = delete;

  bool active() const { return slot_ != kMaxGuardedRanges; }
  // Whether memory of the process's own is in its place. Relaxed order suffices: whoever has
  // touched the range asks on the thread that did, or after what orders that thread's work before.
  bool broken() const { return broken_.load(std::memory_order_relaxed); }

 private:
  std::atomic<bool> broken_{false};
  std::size_t slot_;
};

}  // namespace normd

#endif  // NORMD_SERVER_REGIONS_FAULT_GUARD_H_
