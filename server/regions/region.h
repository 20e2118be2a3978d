// Memory that a client shares with the server: a mapped part of its file, or its memory on a
// device.

#ifndef NORMD_SERVER_REGIONS_REGION_H_
#define NORMD_SERVER_REGIONS_REGION_H_

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/descriptor.h"
#include "base/memory.h"
#include "base/mutex.h"
#include "base/shared_device_memory.h"
#include "server/regions/fault_guard.h"
#include "server/regions/page_locks.h"

namespace normd {

// The origin of a region, which decides its end.
enum class RegionKind {
  kNamed,       // A POSIX shared memory object, until it is unregistered.
  kDescriptor,  // A descriptor that a client has passed, as long as its connection.
  kDevice,      // Memory of a device, by the driver's handle, until it is unregistered.
};

struct RegionFacts {
  RegionKind kind = RegionKind::kNamed;
  std::string owner;  // The only identity that can use it; empty without a policy.
  std::string name;
  std::string key;          // For a named region.
  std::int64_t offset = 0;  // The beginning in its file.
  std::int64_t bytes = 0;   // At least 1.
  bool writable = false;
  MemoryPlace place;  // On the host, or a device.
  TimePoint registered{};
};

// Bytes of a file: memory shared under two names has two addresses. Device memory has one address
// however often its handle is opened, and counts as the device's file 0.
struct FileRange {
  bool on_device = false;
  dev_t device = 0;
  ino_t file = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;

  bool Overlaps(const FileRange& other) const {
    return on_device == other.on_device && device == other.device && file == other.file &&
           begin < other.end && other.begin < end;
  }
};

// Immutable except for its bytes, which the client may change at any time: two reads may give two
// values, and only numbers may depend on them. Unmapped on destruction. Thread-safe.
class Region {
 public:
  // Maps facts.bytes from facts.offset of the open file. OutOfRange unless the file has them;
  // ResourceExhausted when the process can map no more. `keep` lives as long as the mapping.
  // `locks`, which may be null and outlives the region, locks its pages for devices when it can.
  static absl::StatusOr<std::shared_ptr<const Region>> Map(int file, RegionFacts facts,
                                                           std::shared_ptr<void> keep,
                                                           PageLocks* locks = nullptr,
                                                           LockWait wait = {});
  // The first facts.bytes of a handle's memory, on the device of facts.place. InvalidArgument for
  // an invalid handle and for memory of another device, OutOfRange for more bytes than its
  // allocation has. `driver` outlives the region.
  static absl::StatusOr<std::shared_ptr<const Region>> OpenDevice(SharedDeviceMemory& driver,
                                                                  ConstBytes handle,
                                                                  RegionFacts facts,
                                                                  std::shared_ptr<void> keep);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  const RegionFacts& facts() const { return facts_; }

  // facts().place, or pinned memory once its pages are locked; from then on for as long as the
  // caller holds the region.
  MemoryPlace place() const;

  // The bytes of a part that lies in the region; nullopt for any other, and for negative numbers.
  // They are where place() says: the host must not touch those of a device.
  std::optional<MutableBytes> Part(std::int64_t offset, std::int64_t bytes) const;
  // The same part in its file.
  FileRange PartOfFile(std::int64_t offset, std::int64_t bytes) const;

  // Keeps `what` until the memory is unmapped: its destructor, on the thread that releases the
  // region last, or that of the locks, tells others about that.
  void Keep(std::shared_ptr<void> what) const;

  // Whether the client has taken the memory away: results computed from it, or written to it, are
  // lost. Asks the system about files that may become shorter without a fault, because devices use
  // their pages.
  bool broken() const;

 private:
  Region(RegionFacts facts, std::shared_ptr<MappedPages> pages, const FileRange& range,
         std::shared_ptr<void> keep);
  Region(RegionFacts facts, std::unique_ptr<OpenedDeviceMemory> opened, std::shared_ptr<void> keep);
  // Call before the region is shared.
  void LockPages(PageLocks& locks, int file, LockWait wait);

  const RegionFacts facts_;
  const FileRange range_;
  mutable Mutex mutex_;
  // shared: whatever they are.
  mutable std::vector<std::shared_ptr<void>> kept_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<MappedPages> pages_;  // Host memory. shared: with the locks.
  PageLocks* locks_ = nullptr;          // The locks that have taken the pages, and get them back.
  std::list<PageLocks::Released> release_;  // One, for that.
  Descriptor file_;                         // A file that may become shorter while it is locked.
  // Relaxed: a thread that finds the file shorter has seen it.
  mutable std::atomic<bool> shorter_{false};
  const std::unique_ptr<OpenedDeviceMemory> opened_;  // Device memory instead.
  std::byte* const first_;                            // The host memory's, in the first page.
  // After the mapping: unmapped memory may be reused at once.
  std::optional<FaultGuard> guard_;
};

}  // namespace normd

#endif  // NORMD_SERVER_REGIONS_REGION_H_
