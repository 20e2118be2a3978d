#include "server/regions/region_registry.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/printable.h"
#include "server/regions/named_file.h"

namespace normd {
namespace {

constexpr std::size_t kMaxNameShown = 64;  // Bytes of a name that an error repeats.

absl::Status IsRegistered(absl::string_view name) {
  return absl::AlreadyExistsError(
      absl::StrCat("region \"", Printable(name, kMaxNameShown),
                   "\" is registered, wanted another name, or that it is unregistered first"));
}

absl::Status BeyondLimit(const char* what, std::int64_t asked, std::int64_t free,
                         const char* whose) {
  return absl::ResourceExhaustedError(
      absl::StrCat(what, ": ", asked, ", wanted at most the ", free, " that are free of ", whose));
}

RegionPlane PlaneOf(RegionKind kind) {
  switch (kind) {
    case RegionKind::kNamed: return RegionPlane::kNamed;
    case RegionKind::kDescriptor: return RegionPlane::kDescriptor;
    case RegionKind::kDevice: break;
  }
  return RegionPlane::kDevice;
}

// Whether it has a user beside the registry: only requests take it out. Call with the registry's
// lock, so that no user is just being added.
bool IsInUse(const std::shared_ptr<const Region>& region) { return region.use_count() > 1; }

}  // namespace

absl::Status NoRegion(absl::string_view name) {
  return absl::NotFoundError(
      absl::StrCat("region \"", Printable(name, kMaxNameShown), "\" is not registered"));
}

class RegionRegistry::Counts : public std::enable_shared_from_this<Counts> {
 public:
  Counts(const RegionLimits& limits, RegionMetrics& metrics) : limits_(limits), metrics_(metrics) {}

  // Counts the region until the result is dropped.
  absl::StatusOr<std::shared_ptr<void>> Take(const RegionFacts& facts) {
    MutexLock lock(mutex_);
    Amount& owned = by_owner_[facts.owner];
    absl::Status status = Fits(facts, owned);
    if (!status.ok()) {
      if (owned.regions == 0) by_owner_.erase(facts.owner);
      return status;
    }
    Add(facts, owned, 1);
    return std::shared_ptr<void>(this, [counts = shared_from_this(), owner = facts.owner,
                                        kind = facts.kind, bytes = facts.bytes](void*) {
      RegionFacts gone;
      gone.owner = owner;
      gone.kind = kind;
      gone.bytes = bytes;
      counts->Return(gone);
    });
  }

 private:
  struct Amount {
    std::int64_t regions = 0;
    std::int64_t bytes = 0;
  };

  absl::Status Fits(const RegionFacts& facts, const Amount& owned) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (all_.regions >= limits_.max_regions) {
      return BeyondLimit("regions", 1, 0, "--max_shared_regions");
    }
    if (owned.regions >= limits_.max_owner_regions) {
      return BeyondLimit("regions", 1, 0, "--max_identity_shared_regions");
    }
    if (facts.bytes > limits_.max_bytes - all_.bytes) {
      return BeyondLimit("byte_size", facts.bytes, limits_.max_bytes - all_.bytes,
                         "--max_shared_bytes");
    }
    if (facts.bytes > limits_.max_owner_bytes - owned.bytes) {
      return BeyondLimit("byte_size", facts.bytes, limits_.max_owner_bytes - owned.bytes,
                         "--max_identity_shared_bytes");
    }
    return absl::OkStatus();
  }

  void Add(const RegionFacts& facts, Amount& owned, std::int64_t sign)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (Amount* amount : {&owned, &all_}) {
      amount->regions += sign;
      amount->bytes += sign * facts.bytes;
    }
    metrics_.AddMapped(PlaneOf(facts.kind), sign, sign * facts.bytes);
  }

  void Return(const RegionFacts& facts) {
    MutexLock lock(mutex_);
    const auto owned = by_owner_.find(facts.owner);
    Add(facts, owned->second, -1);
    if (owned->second.regions == 0) by_owner_.erase(owned);
  }

  const RegionLimits limits_;
  RegionMetrics& metrics_;
  Mutex mutex_;
  Amount all_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, Amount> by_owner_ ABSL_GUARDED_BY(mutex_);
};

RegionRegistry::RegionRegistry(RegionRegistryOptions options, RegionMetrics& metrics,
                               const Clock& clock)
    : options_(std::move(options)),
      metrics_(metrics),
      clock_(clock),
      counts_(std::make_shared<Counts>(options_.limits, metrics)) {}

RegionRegistry::~RegionRegistry() = default;

absl::Status RegionRegistry::Refused(RegionRefusal reason, absl::Status status) const {
  metrics_.RecordRefused(reason);
  return status;
}

absl::Status RegionRegistry::Check(const RegionFacts& facts) const {
  if (facts.name.empty() || facts.name.size() > kMaxRegionNameBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "name: ", facts.name.size(), " bytes, wanted from 1 to ", kMaxRegionNameBytes));
  }
  MutexLock lock(mutex_);
  if (!regions_.contains(Key(facts.owner, facts.name))) return absl::OkStatus();
  return IsRegistered(facts.name);
}

absl::Status RegionRegistry::RegisterNamed(RegionFacts facts, LockWait wait) {
  if (!options_.named) {
    return Refused(RegionRefusal::kOff,
                   absl::UnimplementedError("named shared memory is switched off on this server "
                                            "(--shared_memory=named switches it on)"));
  }
  if (absl::Status status = Check(facts); !status.ok()) {
    return Refused(RegionRefusal::kName, std::move(status));
  }
  const absl::StatusOr<SharedFile> file =
      OpenNamedFile(options_.folder, facts.key, options_.prefix);
  if (!file.ok()) return Refused(RegionRefusal::kFile, file.status());
  facts.kind = RegionKind::kNamed;
  facts.writable = file->writable;
  return Insert(std::move(facts), RegionRefusal::kFile, [&](RegionFacts mapped, auto keep) {
    return Region::Map(file->descriptor.get(), std::move(mapped), std::move(keep),
                       options_.page_locks, std::move(wait));
  });
}

absl::Status RegionRegistry::RegisterFile(int file, RegionFacts facts, LockWait wait) {
  if (absl::Status status = Check(facts); !status.ok()) {
    return Refused(RegionRefusal::kName, std::move(status));
  }
  return Insert(std::move(facts), RegionRefusal::kFile, [&](RegionFacts mapped, auto keep) {
    return Region::Map(file, std::move(mapped), std::move(keep), options_.page_locks,
                       std::move(wait));
  });
}

absl::Status RegionRegistry::CheckDevice(const RegionFacts& facts, ConstBytes handle) const {
  if (options_.device_memory == nullptr) {
    return absl::FailedPreconditionError(
        "device_id: this server has no device, it computes on the CPU; wanted memory of the host");
  }
  const int device = facts.place.device;
  const int count = options_.device_memory->device_count();
  if (device < 0 || device >= count) {
    return absl::InvalidArgumentError(
        absl::StrCat("device_id: ", device, ", wanted one of the ", count, " devices from 0 on"));
  }
  if (!options_.device_memory->Uses(device)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "device_id: ", device, ", wanted a device that the server computes on (--device)"));
  }
  if (handle.size() == kDeviceHandleBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("raw_handle: ", handle.size(), " bytes, wanted ",
                                                 kDeviceHandleBytes, ", a cudaIpcMemHandle_t"));
}

absl::Status RegionRegistry::RegisterDevice(RegionFacts facts, ConstBytes handle) {
  if (!options_.device) {
    return Refused(RegionRefusal::kOff,
                   absl::UnimplementedError("shared memory of devices is switched off on this "
                                            "server (--shared_memory_cuda switches it on)"));
  }
  if (absl::Status status = Check(facts); !status.ok()) {
    return Refused(RegionRefusal::kName, std::move(status));
  }
  if (absl::Status status = CheckDevice(facts, handle); !status.ok()) {
    return Refused(RegionRefusal::kDevice, std::move(status));
  }
  facts.kind = RegionKind::kDevice;
  facts.place.kind = MemoryKind::kDevice;
  facts.writable = true;
  return Insert(std::move(facts), RegionRefusal::kDevice, [&](RegionFacts mapped, auto keep) {
    return Region::OpenDevice(*options_.device_memory, handle, std::move(mapped), std::move(keep));
  });
}

absl::Status RegionRegistry::Insert(RegionFacts facts, RegionRefusal reason, Map map) {
  facts.registered = clock_.Now();
  absl::StatusOr<std::shared_ptr<void>> counted = counts_->Take(facts);
  if (!counted.ok()) return Refused(RegionRefusal::kLimit, counted.status());
  Key key(facts.owner, facts.name);
  absl::StatusOr<std::shared_ptr<const Region>> region = map(std::move(facts), *std::move(counted));
  if (!region.ok()) return Refused(reason, region.status());
  bool inserted = false;
  {
    MutexLock lock(mutex_);
    // Moved if it is inserted: this call does not use it.
    inserted = regions_.try_emplace(key, *std::move(region)).second;
  }
  if (inserted) return absl::OkStatus();
  // Another call was quicker.
  return Refused(RegionRefusal::kName, IsRegistered(key.second));
}

absl::StatusOr<std::shared_ptr<const Region>> RegionRegistry::Find(absl::string_view owner,
                                                                   absl::string_view name) const {
  MutexLock lock(mutex_);
  const auto found = regions_.find(Key(owner, name));
  if (found == regions_.end()) return NoRegion(name);
  return found->second;
}

absl::StatusOr<RegionFacts> RegionRegistry::FactsOf(absl::string_view owner,
                                                    absl::string_view name) const {
  MutexLock lock(mutex_);
  const auto found = regions_.find(Key(owner, name));
  if (found == regions_.end()) return NoRegion(name);
  return found->second->facts();
}

std::vector<RegionFacts> RegionRegistry::List(absl::string_view owner) const {
  std::vector<RegionFacts> list;
  {
    MutexLock lock(mutex_);
    for (const auto& [key, region] : regions_) {
      if (key.first == owner) list.push_back(region->facts());
    }
  }
  std::sort(list.begin(), list.end(),
            [](const RegionFacts& a, const RegionFacts& b) { return a.name < b.name; });
  return list;
}

std::vector<ListedRegion> RegionRegistry::ListAll() const {
  std::vector<Key> keys;
  {
    MutexLock lock(mutex_);
    for (const auto& [key, region] : regions_) keys.push_back(key);
  }
  std::vector<ListedRegion> list;
  for (const Key& key : keys) {
    // Each by itself, so that requests that look for theirs do not wait for the whole list.
    MutexLock lock(mutex_);
    const auto found = regions_.find(key);
    if (found == regions_.end()) continue;
    const auto& region = found->second;
    list.push_back({region->facts(), IsInUse(region), region->broken(),
                    region->place().kind == MemoryKind::kPinned});
  }
  std::sort(list.begin(), list.end(), [](const ListedRegion& a, const ListedRegion& b) {
    return a.facts.registered < b.facts.registered;
  });
  return list;
}

absl::Status RegionRegistry::Unregister(absl::string_view owner, absl::string_view name,
                                        InUse in_use, const std::shared_ptr<void>& until_gone) {
  std::shared_ptr<const Region> region;  // Unmapped, if it is the last reference, without the lock.
  MutexLock lock(mutex_);
  const auto found = regions_.find(Key(owner, name));
  if (found == regions_.end()) return NoRegion(name);
  if (in_use == InUse::kRefuse && IsInUse(found->second)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "region \"", Printable(name, kMaxNameShown), "\" is in use, wanted that its requests end"));
  }
  region = std::move(found->second);
  if (until_gone != nullptr) region->Keep(until_gone);
  regions_.erase(found);
  return absl::OkStatus();
}

absl::Status RegionRegistry::UnregisterAll(absl::string_view owner, RegionKind kind, InUse in_use,
                                           const std::shared_ptr<void>& until_gone) {
  std::vector<std::shared_ptr<const Region>> gone;
  // Descriptors' regions belong to their connections, for every caller.
  const auto is_meant = [owner, kind](const Key& key, const Region& region) {
    return key.first == owner && region.facts().kind == kind;
  };
  MutexLock lock(mutex_);
  for (const auto& [key, region] : regions_) {
    if (!is_meant(key, *region) || in_use != InUse::kRefuse || !IsInUse(region)) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("region \"", Printable(key.second, kMaxNameShown),
                     "\" is in use, wanted that its requests end"));
  }
  for (auto at = regions_.begin(); at != regions_.end();) {
    const auto here = at++;
    if (!is_meant(here->first, *here->second)) continue;
    gone.push_back(std::move(here->second));
    if (until_gone != nullptr) gone.back()->Keep(until_gone);
    regions_.erase(here);
  }
  return absl::OkStatus();
}

}  // namespace normd
