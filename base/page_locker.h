// Host pages that a driver locks, so that its devices reach them without the CPU. The interface
// lets everything above the driver be tested without a device.

#ifndef NORMD_BASE_PAGE_LOCKER_H_
#define NORMD_BASE_PAGE_LOCKER_H_

#include <cstddef>

#include "absl/status/status.h"

namespace normd {

// Thread-safe. Both calls take about half a millisecond for each MiB and may wait for the devices:
// call them on a thread for which nobody waits.
class PageLocker {
 public:
  virtual ~PageLocker() = default;

  // Locks whole pages that the process has mapped. Every device that the server uses then reads
  // them, and writes them where `writable`, by the process's own pointer (MemoryKind::kPinned).
  // Allocates those pages of a file that do not exist yet. Locks nothing on an error.
  virtual absl::Status Lock(std::byte* begin, std::size_t bytes, bool writable) = 0;
  // Unlocks what Lock has locked. The memory is still mapped, and no device uses it any more.
  virtual void Unlock(std::byte* begin) = 0;
};

}  // namespace normd

#endif  // NORMD_BASE_PAGE_LOCKER_H_
