#include "server/rpc/infer_regions.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/printable.h"

namespace normd {
namespace {

constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();

absl::Status SwitchedOff() {
  return absl::UnimplementedError(
      "shared memory is switched off on this server (--shared_memory=named switches it on)");
}

absl::Status CheckFits(const char* field, std::uint64_t value) {
  if (value <= kMost) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", value, ", wanted at most ", kMost));
}

// A region of another kind is not there for these calls: its name is known to its client alone.
absl::StatusOr<std::shared_ptr<const Region>> FindNamed(const RegionRegistry& registry,
                                                        absl::string_view owner,
                                                        absl::string_view name) {
  auto region = registry.Find(owner, name);
  if (!region.ok() || (*region)->facts().kind == RegionKind::kNamed) return region;
  return absl::NotFoundError("region: not one that was registered by name");
}

}  // namespace

absl::Status RegisterRegion(RegionRegistry* registry, absl::string_view owner,
                            const inference::SystemSharedMemoryRegisterRequest& request) {
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
  return registry->RegisterNamed(std::move(facts));
}

absl::Status UnregisterRegions(RegionRegistry* registry, absl::string_view owner,
                               absl::string_view name, Unregistering how,
                               const std::shared_ptr<void>& until_gone) {
  if (registry == nullptr) return SwitchedOff();
  const InUse in_use = how == Unregistering::kRefuse ? InUse::kRefuse : InUse::kFinish;
  if (name.empty()) return registry->UnregisterAll(owner, in_use, until_gone);
  if (absl::Status status = FindNamed(*registry, owner, name).status(); !status.ok()) {
    return status;
  }
  return registry->Unregister(owner, name, in_use, until_gone);
}

absl::Status AddRegions(RegionRegistry* registry, absl::string_view owner, absl::string_view name,
                        inference::SystemSharedMemoryStatusResponse& response) {
  if (registry == nullptr) return SwitchedOff();
  const auto add = [&response](const Region& region) {
    const RegionFacts& facts = region.facts();
    auto& out = (*response.mutable_regions())[facts.name];
    out.set_name(facts.name);
    out.set_key(facts.key);
    out.set_offset(static_cast<std::uint64_t>(facts.offset));
    out.set_byte_size(static_cast<std::uint64_t>(facts.bytes));
  };
  if (name.empty()) {
    for (const auto& region : registry->List(owner)) {
      if (region->facts().kind == RegionKind::kNamed) add(*region);
    }
    return absl::OkStatus();
  }
  const auto region = FindNamed(*registry, owner, name);
  if (!region.ok()) return region.status();
  add(**region);
  return absl::OkStatus();
}

absl::StatusOr<Unregistering> UnregisteringOf(const grpc::CallbackServerContext& context) {
  const auto found = context.client_metadata().find("normd-in-use");
  if (found == context.client_metadata().end()) return Unregistering::kFinish;
  const absl::string_view text(found->second.data(), found->second.size());
  if (text == "finish") return Unregistering::kFinish;
  if (text == "refuse") return Unregistering::kRefuse;
  if (text == "wait") return Unregistering::kWait;
  return absl::InvalidArgumentError(
      absl::StrCat("normd-in-use: \"", Printable(text, 32), "\", wanted finish, refuse or wait"));
}

}  // namespace normd
