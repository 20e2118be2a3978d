#include "server/regions/region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace normd {
namespace {

absl::Status CheckNotEmpty(const RegionFacts& facts) {
  if (facts.bytes >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("byte_size: ", facts.bytes, ", wanted at least 1"));
}

// The file must have the region's end.
absl::StatusOr<std::int64_t> EndOf(const RegionFacts& facts) {
  if (absl::Status status = CheckNotEmpty(facts); !status.ok()) return status;
  if (facts.offset < 0) {
    return absl::InvalidArgumentError(absl::StrCat("offset: ", facts.offset, ", wanted 0 or more"));
  }
  if (facts.offset <= std::numeric_limits<std::int64_t>::max() - facts.bytes) {
    return facts.offset + facts.bytes;
  }
  return absl::OutOfRangeError(absl::StrCat("offset: ", facts.offset,
                                            " and byte_size: ", facts.bytes, ", wanted at most ",
                                            std::numeric_limits<std::int64_t>::max(), " together"));
}

bool HasBytes(int file, std::int64_t bytes) {
  struct stat found = {};
  return fstat(file, &found) == 0 && found.st_size >= bytes;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Region>> Region::Map(int file, RegionFacts facts,
                                                          std::shared_ptr<void> keep,
                                                          PageLocks* locks, LockWait wait) {
  const absl::StatusOr<std::int64_t> end = EndOf(facts);
  if (!end.ok()) return end.status();
  struct stat found = {};
  if (fstat(file, &found) != 0) return absl::InvalidArgumentError("the file cannot be looked at");
  if (found.st_size < *end) {
    return absl::OutOfRangeError(absl::StrCat("byte_size: ", facts.bytes, " from offset ",
                                              facts.offset, ", wanted at most the ", found.st_size,
                                              " bytes that the file has"));
  }
  // A mapping begins and ends at a page. Unsigned: rounding up may exceed 63 bits, which the system
  // then refuses.
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  const std::uint64_t before = static_cast<std::uint64_t>(facts.offset) % page;
  const std::uint64_t pages = (before + static_cast<std::uint64_t>(facts.bytes) + page - 1) / page;
  const int access = facts.writable ? PROT_READ | PROT_WRITE : PROT_READ;
  void* const at = mmap(nullptr, pages * page, access, MAP_SHARED, file,
                        facts.offset - static_cast<std::int64_t>(before));
  if (at == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "byte_size: ", facts.bytes, " bytes cannot be mapped: ", strerrordesc_np(errno)));
  }
  const FileRange range = {false, found.st_dev, found.st_ino, facts.offset, *end};
  auto mapped =
      std::make_shared<MappedPages>(static_cast<std::byte*>(at), pages * page, facts.writable);
  std::shared_ptr<Region> region(
      new Region(std::move(facts), std::move(mapped), range, std::move(keep)));
  if (!region->guard_->active()) {
    return absl::ResourceExhaustedError("regions: the server cannot guard more of them");
  }
  if (locks != nullptr) region->LockPages(*locks, file, std::move(wait));
  return region;
}

void Region::LockPages(PageLocks& locks, int file, LockWait wait) {
  // A passed descriptor is sealed.
  if (facts_.kind != RegionKind::kDescriptor) {
    file_ = Descriptor(fcntl(file, F_DUPFD_CLOEXEC, 0));
    if (!file_.valid()) return;
  }
  std::list<PageLocks::Released> release(1);
  release.front().owner = facts_.owner;
  if (locks.Add(pages_, facts_.owner, std::move(wait))) {
    locks_ = &locks;
    release_ = std::move(release);
  } else {
    file_.Reset();
  }
}

absl::StatusOr<std::shared_ptr<const Region>> Region::OpenDevice(SharedDeviceMemory& driver,
                                                                 ConstBytes handle,
                                                                 RegionFacts facts,
                                                                 std::shared_ptr<void> keep) {
  if (absl::Status status = CheckNotEmpty(facts); !status.ok()) return status;
  const int device = facts.place.device;
  const absl::StatusOr<std::byte*> data = driver.Open(device, handle);
  if (!data.ok()) return data.status();
  auto opened = std::make_unique<OpenedDeviceMemory>(driver, device, *data);
  const absl::StatusOr<DeviceAllocation> allocation = driver.AllocationOf(device, *data);
  if (!allocation.ok()) return allocation.status();
  if (allocation->device != device) {
    return absl::InvalidArgumentError(absl::StrCat(
        "device_id: ", device, ", wanted the device of the handle's memory, ", allocation->device));
  }
  const std::int64_t has = allocation->bytes - (*data - allocation->begin);
  if (has < facts.bytes) {
    return absl::OutOfRangeError(absl::StrCat("byte_size: ", facts.bytes, ", wanted at most the ",
                                              has, " bytes that the handle's allocation has"));
  }
  return std::shared_ptr<const Region>(
      new Region(std::move(facts), std::move(opened), std::move(keep)));
}

Region::~Region() {
  guard_.reset();
  if (locks_ == nullptr) return;
  release_.front().pages = std::move(pages_);
  {
    MutexLock lock(mutex_);
    release_.front().kept.swap(kept_);
  }
  locks_->Release(std::move(release_));
}

Region::Region(RegionFacts facts, std::shared_ptr<MappedPages> pages, const FileRange& range,
               std::shared_ptr<void> keep)
    : facts_(std::move(facts)),
      range_(range),
      kept_({std::move(keep)}),
      pages_(std::move(pages)),
      first_(pages_->begin() + static_cast<std::uint64_t>(facts_.offset) %
                                   static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE))),
      guard_(std::in_place, pages_->begin(), pages_->bytes()) {}

Region::Region(RegionFacts facts, std::unique_ptr<OpenedDeviceMemory> opened,
               std::shared_ptr<void> keep)
    : facts_(std::move(facts)),
      range_{true, static_cast<dev_t>(facts_.place.device), 0,
             static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(opened->data())),
             static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(opened->data())) +
                 facts_.bytes},
      kept_({std::move(keep)}),
      opened_(std::move(opened)),
      first_(opened_->data()) {}

void Region::Keep(std::shared_ptr<void> what) const {
  MutexLock lock(mutex_);
  kept_.push_back(std::move(what));
}

MemoryPlace Region::place() const {
  if (pages_ == nullptr || !pages_->locked()) return facts_.place;
  return {MemoryKind::kPinned};
}

// Device accesses to pages that the file no longer has raise no fault.
bool Region::broken() const {
  if (!guard_.has_value()) return false;
  if (guard_->broken() || shorter_.load(std::memory_order_relaxed)) return true;
  if (!file_.valid() || !pages_->locked() || HasBytes(file_.get(), range_.end)) return false;
  // Its pages stay gone even if the file grows again.
  shorter_.store(true, std::memory_order_relaxed);
  return true;
}

std::optional<MutableBytes> Region::Part(std::int64_t offset, std::int64_t bytes) const {
  if (offset < 0 || bytes < 0 || offset > facts_.bytes || bytes > facts_.bytes - offset) {
    return std::nullopt;
  }
  return MutableBytes(first_ + offset, static_cast<std::size_t>(bytes));
}

FileRange Region::PartOfFile(std::int64_t offset, std::int64_t bytes) const {
  FileRange part = range_;
  part.begin += offset;
  part.end = part.begin + bytes;
  return part;
}

}  // namespace normd
