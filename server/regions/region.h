// Memory that a client shares with the server: a mapped part of a file of its, or memory that it
// has taken on a device.

#ifndef NORMD_SERVER_REGIONS_REGION_H_
#define NORMD_SERVER_REGIONS_REGION_H_

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
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

// How a region came, and so what ends it.
enum class RegionKind {
  kNamed,       // A POSIX shared memory object, until it is unregistered.
  kDescriptor,  // A descriptor that a client has passed, as long as its connection.
  kDevice,      // Memory of a device, by the driver's handle, until it is unregistered.
};

struct RegionFacts {
  RegionKind kind = RegionKind::kNamed;
  std::string owner;  // The identity that alone can use it; empty where there is no policy.
  std::string name;
  std::string key;          // Of a named one.
  std::int64_t offset = 0;  // Where it begins in its file.
  std::int64_t bytes = 0;   // At least 1.
  bool writable = false;
  MemoryPlace place;  // On the host, or on which device.
  TimePoint registered{};
};

// Which bytes of which file: what is shared under two names has two addresses. Memory of a device
// has one address however often its handle is opened, and counts as the file 0 of the device.
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

// Immutable but for what the client does to its bytes, at any time: whoever reads them twice may
// read two values, and nothing may follow from them but numbers. Unmapped on destruction.
// Thread-safe.
class Region {
 public:
  // Maps facts.bytes from facts.offset of the open file. OutOfRange unless the file has them;
  // ResourceExhausted when the process can map no more. `keep` lives as long as the mapping.
  // `locks`, which may be null and outlives the region, lock its pages for devices when they can.
  static absl::StatusOr<std::shared_ptr<const Region>> Map(int file, RegionFacts facts,
                                                           std::shared_ptr<void> keep,
                                                           PageLocks* locks = nullptr,
                                                           LockWait wait = {});
  // The first facts.bytes of the memory that a handle is of, on the device of facts.place.
  // InvalidArgument for a handle that is none and for memory of another device, OutOfRange for more
  // bytes than its allocation has. `driver` outlives the region.
  static absl::StatusOr<std::shared_ptr<const Region>> OpenDevice(SharedDeviceMemory& driver,
                                                                  ConstBytes handle,
                                                                  RegionFacts facts,
                                                                  std::shared_ptr<void> keep);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  const RegionFacts& facts() const { return facts_; }

  // facts().place, or pinned memory once its pages are locked, from then on for as long as whoever
  // asks holds the region.
  MemoryPlace place() const;

  // The bytes of a part, which lies in it; nullopt for any other, negative numbers among them. They
  // are where place() says: the host does not touch those of a device.
  std::optional<MutableBytes> Part(std::int64_t offset, std::int64_t bytes) const;
  // The same part in its file.
  FileRange PartOfFile(std::int64_t offset, std::int64_t bytes) const;

  // Keeps `what` until the memory is unmapped: whoever waits for that learns of it by its end,
  // which is on the thread that lets the region go last, or that of the locks.
  void Keep(std::shared_ptr<void> what) const;

  // Whether the client has taken the memory away: what was computed from it, or written to it,
  // is lost. Asks the system where a file may become shorter without a fault, because devices use
  // its pages.
  bool broken() const;

 private:
  Region(RegionFacts facts, std::shared_ptr<MappedPages> pages, const FileRange& range,
         std::shared_ptr<void> keep);
  Region(RegionFacts facts, std::unique_ptr<OpenedDeviceMemory> opened, std::shared_ptr<void> keep);
  // Before anybody else has the region.
  void LockPages(PageLocks& locks, int file, LockWait wait);

  const RegionFacts facts_;
  const FileRange range_;
  mutable Mutex mutex_;
  mutable PageLocks::KeptThings kept_ ABSL_GUARDED_BY(mutex_);  // shared: whatever they are.
  std::shared_ptr<MappedPages> pages_;  // Of the host's memory. shared: with the locks.
  PageLocks* locks_ = nullptr;          // That have taken the pages, and get them back.
  Descriptor file_;                     // Of a file that may become shorter while it is locked.
  mutable std::atomic<bool> shorter_{false};  // Relaxed: who finds the file shorter has seen it.
  const std::unique_ptr<OpenedDeviceMemory> opened_;  // Or of a device's.
  std::byte* const first_;                            // Of the host's, in the first page.
  // After the mapping: what is unmapped may be another's at once.
  std::optional<FaultGuard> guard_;
};

}  // namespace normd

#endif  // NORMD_SERVER_REGIONS_REGION_H_
