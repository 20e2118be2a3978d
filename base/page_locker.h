// Pages of the host that a driver locks, so that its devices reach them without the CPU: the
// driver's calls, behind a seam so that everything above them is tested without a device.

#ifndef NORMD_BASE_PAGE_LOCKER_H_
#define NORMD_BASE_PAGE_LOCKER_H_

#include <cstddef>

#include "absl/status/status.h"

namespace normd {

// Thread-safe. Both calls take about half a millisecond for each MiB, and may wait for the devices:
// they are for a thread for which nobody waits.
class PageLocker {
 public:
  virtual ~PageLocker() = default;

  // Locks whole pages that the process has mapped, so that every device that the server uses reads
  // them, and writes them where `writable`, by the process's own pointer (MemoryKind::kPinned).
  // Pages that a file does not have yet are taken for it. On an error nothing is locked.
  virtual absl::Status Lock(std::byte* begin, std::size_t bytes, bool writable) = 0;
  // Of what Lock has locked, while it is still mapped, when no device uses it any more.
  virtual void Unlock(std::byte* begin) = 0;
};

}  // namespace normd

#endif  // NORMD_BASE_PAGE_LOCKER_H_
