#include "server/infer/infer_regions.h"

#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/printable.h"

namespace normd {
namespace {

constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();

absl::Status SwitchedOff(RegionKind kind = RegionKind::kNamed) {
  return absl::UnimplementedError(
      kind == RegionKind::kDevice
          ? "shared memory of devices is switched off on this server (--shared_memory_cuda "
            "switches it on)"
          : "shared memory is switched off on this server (--shared_memory=named switches it on)");
}

absl::Status CheckFits(const char* field, std::uint64_t value) {
  if (value <= kMost) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", value, ", wanted at most ", kMost));
}

// These calls see regions of one kind. A region from a descriptor does not exist for any of them:
// only its client knows its name.
absl::StatusOr<RegionFacts> FindOne(const RegionRegistry& registry, const WantedRegions& wanted) {
  auto facts = registry.FactsOf(wanted.owner, wanted.name);
  if (!facts.ok() || facts->kind == wanted.kind) return facts;
  if (facts->kind == RegionKind::kDescriptor) return NoRegion(wanted.name);
  constexpr std::size_t kMaxNameShown = 64;  // Bytes of the name.
  return absl::NotFoundError(absl::StrCat("region \"", Printable(wanted.name, kMaxNameShown),
                                          wanted.kind == RegionKind::kDevice
                                              ? "\" is not one of a device's memory"
                                              : "\" was not registered by a file's name"));
}

// Calls `add` with each of them.
template <typename Add>
absl::Status ForEach(const RegionRegistry& registry, const WantedRegions& wanted, const Add& add) {
  if (wanted.name.empty()) {
    for (const RegionFacts& facts : registry.List(wanted.owner)) {
      if (facts.kind == wanted.kind) add(facts);
    }
    return absl::OkStatus();
  }
  const auto facts = FindOne(registry, wanted);
  if (!facts.ok()) return facts.status();
  add(*facts);
  return absl::OkStatus();
}

}  // namespace

absl::Status RegisterRegion(RegionRegistry* registry, absl::string_view owner,
                            const inference::SystemSharedMemoryRegisterRequest& request,
                            LockWait wait) {
  if (registry == nullptr) return SwitchedOff();
  absl::Status status = CheckFits("offset", request.offset());
  if (status.ok()) status = CheckFits("byte_size", request.byte_size());
  if (!status.ok()) return status;
  RegionFacts facts;
  facts.owner = std::string(owner);
  facts.name = request.name();
  facts.key = request.key();
  facts.offset = static_cast<std::int64_t>(request.offset());
  facts.bytes = static_cast<std::int64_t>(request.byte_size());
  return registry->RegisterNamed(std::move(facts), std::move(wait));
}

absl::Status RegisterRegion(RegionRegistry* registry, absl::string_view owner,
                            const inference::CudaSharedMemoryRegisterRequest& request) {
  if (registry == nullptr) return SwitchedOff(RegionKind::kDevice);
  absl::Status status = CheckFits("byte_size", request.byte_size());
  if (!status.ok()) return status;
  if (request.device_id() < 0 || request.device_id() > std::numeric_limits<int>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat("device_id: ", request.device_id(), ", wanted a device's number from 0 on"));
  }
  RegionFacts facts;
  facts.owner = std::string(owner);
  facts.name = request.name();
  facts.place.device = static_cast<int>(request.device_id());
  facts.bytes = static_cast<std::int64_t>(request.byte_size());
  const std::string& handle = request.raw_handle();
  return registry->RegisterDevice(
      std::move(facts), {reinterpret_cast<const std::byte*>(handle.data()), handle.size()});
}

absl::Status UnregisterRegions(RegionRegistry* registry, const WantedRegions& wanted,
                               Unregistering how, const std::shared_ptr<void>& until_gone) {
  if (registry == nullptr) return SwitchedOff(wanted.kind);
  const InUse in_use = how == Unregistering::kRefuse ? InUse::kRefuse : InUse::kFinish;
  if (wanted.name.empty()) {
    return registry->UnregisterAll(wanted.owner, wanted.kind, in_use, until_gone);
  }
  if (absl::Status status = FindOne(*registry, wanted).status(); !status.ok()) return status;
  return registry->Unregister(wanted.owner, wanted.name, in_use, until_gone);
}

absl::Status AddRegions(RegionRegistry* registry, absl::string_view owner, absl::string_view name,
                        inference::SystemSharedMemoryStatusResponse& response) {
  if (registry == nullptr) return SwitchedOff();
  return ForEach(*registry, {owner, name, RegionKind::kNamed}, [&](const RegionFacts& facts) {
    auto& out = (*response.mutable_regions())[facts.name];
    out.set_name(facts.name);
    out.set_key(facts.key);
    out.set_offset(static_cast<std::uint64_t>(facts.offset));
    out.set_byte_size(static_cast<std::uint64_t>(facts.bytes));
  });
}

absl::Status AddRegions(RegionRegistry* registry, absl::string_view owner, absl::string_view name,
                        inference::CudaSharedMemoryStatusResponse& response) {
  if (registry == nullptr) return SwitchedOff(RegionKind::kDevice);
  return ForEach(*registry, {owner, name, RegionKind::kDevice}, [&](const RegionFacts& facts) {
    auto& out = (*response.mutable_regions())[facts.name];
    out.set_name(facts.name);
    out.set_device_id(static_cast<std::uint64_t>(facts.place.device));
    out.set_byte_size(static_cast<std::uint64_t>(facts.bytes));
  });
}

absl::StatusOr<Unregistering> UnregisteringOf(std::optional<absl::string_view> in_use) {
  if (!in_use.has_value() || *in_use == "finish") return Unregistering::kFinish;
  if (*in_use == "refuse") return Unregistering::kRefuse;
  if (*in_use == "wait") return Unregistering::kWait;
  return absl::InvalidArgumentError(
      absl::StrCat(kInUse, ": \"", Printable(*in_use, 32), "\", wanted finish, refuse or wait"));
}

}  // namespace normd
