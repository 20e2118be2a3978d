// The regions that clients have registered, by owner and name.

#ifndef NORMD_SERVER_REGIONS_REGION_REGISTRY_H_
#define NORMD_SERVER_REGIONS_REGION_REGISTRY_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/shared_device_memory.h"
#include "server/metrics/handles.h"
#include "server/regions/page_locks.h"
#include "server/regions/region.h"

namespace normd {

inline constexpr std::size_t kMaxRegionNameBytes = 256;

// NotFound, for a name that is not registered.
absl::Status NoRegion(absl::string_view name);

// Limits of mapped memory: an unregistered region counts until the last request releases it.
struct RegionLimits {
  std::int64_t max_regions = 1024;
  std::int64_t max_bytes = std::int64_t{64} << 30;
  std::int64_t max_owner_regions = 256;
  std::int64_t max_owner_bytes = std::int64_t{32} << 30;
};

struct RegionRegistryOptions {
  RegionLimits limits;
  bool named = false;               // Whether clients may name files.
  std::string prefix = {};          // The beginning of their names.
  std::string folder = "/dev/shm";  // Their folder; another in tests.
  bool device = false;              // Whether clients may register memory of devices.
  // For the devices that the server computes on; null: there are none. Outlives all regions.
  SharedDeviceMemory* device_memory = nullptr;
  // For the devices that the server computes on; null: pages are not locked. Outlives all regions.
  PageLocks* page_locks = nullptr;
};

// Whether a region may be unregistered while requests use it.
enum class InUse {
  kFinish,  // They keep it until they end; no other finds it.
  kRefuse,  // FailedPrecondition while there are any.
};

// A region's state when it was listed.
struct ListedRegion {
  RegionFacts facts;
  bool in_use = false;  // Requests use it.
  bool broken = false;
  bool page_locked = false;
};

// An owner only finds its own regions. Thread-safe. No lock is held while a file is opened, mapped
// or unmapped. Regions may outlive it; the metrics outlive both.
//
// A region is in use while a result of Find exists, which is for requests. Other callers take
// copies of the facts; they neither count as users nor keep the memory mapped.
class RegionRegistry {
 public:
  RegionRegistry(RegionRegistryOptions options, RegionMetrics& metrics, const Clock& clock);
  ~RegionRegistry();

  // The accepted registrations, besides files.
  bool takes_names() const { return options_.named; }
  bool takes_devices() const { return options_.device && options_.device_memory != nullptr; }

  // Opens the object facts.key and maps the facts' part of it; finds out `writable` and
  // `registered`. Beyond OpenNamedFile's and Region::Map's errors: Unimplemented unless named
  // regions are switched on, InvalidArgument for a name that is empty or too long, AlreadyExists,
  // ResourceExhausted beyond a limit. Its pages are locked for the devices later; `wait` ends then,
  // or when this returns if they are not to be locked.
  absl::Status RegisterNamed(RegionFacts facts, LockWait wait = {});
  // The same for an open file, which stays the caller's.
  absl::Status RegisterFile(int file, RegionFacts facts, LockWait wait = {});
  // Likewise opens memory of device facts.place.device by its handle. Beyond Region::OpenDevice's
  // errors: FailedPrecondition if the server computes on no device, InvalidArgument for a device
  // that it does not use, and for a handle that has not kDeviceHandleBytes.
  absl::Status RegisterDevice(RegionFacts facts, ConstBytes handle);

  // The region, for use until it is dropped. NotFound; a region may be broken.
  absl::StatusOr<std::shared_ptr<const Region>> Find(absl::string_view owner,
                                                     absl::string_view name) const;
  // NotFound.
  absl::StatusOr<RegionFacts> FactsOf(absl::string_view owner, absl::string_view name) const;
  // By name.
  std::vector<RegionFacts> List(absl::string_view owner) const;
  // The regions of all owners, the oldest first, each in its state at one moment. Asks the system
  // about named files of locked pages under the lock, as Region::broken does, one file at a time.
  std::vector<ListedRegion> ListAll() const;

  // NotFound; see InUse. `until_gone` is kept until the memory is unmapped (Region::Keep).
  absl::Status Unregister(absl::string_view owner, absl::string_view name, InUse in_use,
                          const std::shared_ptr<void>& until_gone = nullptr);
  // All regions of the owner of this kind, kNamed or kDevice.
  absl::Status UnregisterAll(absl::string_view owner, RegionKind kind, InUse in_use,
                             const std::shared_ptr<void>& until_gone = nullptr);

 private:
  // The mapped regions' counts. shared: with the regions, which may outlive the registry.
  class Counts;
  using Key = std::pair<std::string, std::string>;  // Owner, name.
  using Regions = absl::flat_hash_map<Key, std::shared_ptr<const Region>>;

  // Makes a region that keeps the second argument as long as its memory is mapped.
  using Map = absl::FunctionRef<absl::StatusOr<std::shared_ptr<const Region>>(
      RegionFacts, std::shared_ptr<void>)>;

  absl::Status Check(const RegionFacts& facts) const;
  absl::Status CheckDevice(const RegionFacts& facts, ConstBytes handle) const;
  absl::Status Insert(RegionFacts facts, RegionRefusal reason, Map map);
  absl::Status Refused(RegionRefusal reason, absl::Status status) const;

  const RegionRegistryOptions options_;
  RegionMetrics& metrics_;
  const Clock& clock_;
  const std::shared_ptr<Counts> counts_;
  mutable Mutex mutex_;
  // shared: with the requests inside.
  Regions regions_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace normd

#endif  // NORMD_SERVER_REGIONS_REGION_REGISTRY_H_
