#include "server/model/known_versions.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/printable.h"
#include "server/model/model_name.h"

namespace normd {
namespace {

std::string Describe(const KnownVersions* versions) {
  const auto number = [](std::string* out, const ModelStatus& status) {
    absl::StrAppend(out, status.version, status.model != nullptr ? "" : " (failed)");
  };
  if (versions == nullptr) return "no version is loaded";
  return absl::StrCat("known versions: ", absl::StrJoin(versions->list, ", ", number));
}

}  // namespace

const ModelStatus* KnownVersions::Find(std::int64_t version) const {
  const auto found = std::find_if(list.begin(), list.end(), [version](const auto& status) {
    return status.version == version;
  });
  return found == list.end() ? nullptr : &*found;
}

void KnownVersions::Insert(ModelStatus status) {
  std::erase_if(list, [&status](const ModelStatus& old) {
    return old.version == status.version || old.version == 0;
  });
  const auto place = std::find_if(list.begin(), list.end(), [&status](const auto& other) {
    return other.version > status.version;
  });
  list.insert(place, std::move(status));
}

bool KnownVersions::AnyLoaded() const {
  return std::any_of(list.begin(), list.end(),
                     [](const ModelStatus& status) { return status.model != nullptr; });
}

const ModelStatus* KnownVersions::FindLoaded(std::int64_t version) const {
  const ModelStatus* canary = nullptr;
  for (auto status = list.rbegin(); status != list.rend(); ++status) {
    if (status->model == nullptr || (version != 0 && status->version != version)) continue;
    if (version != 0 || status->version != plan.canary) return &*status;
    canary = &*status;
  }
  return canary;
}

const ModelStatus* KnownVersions::Choose(std::int64_t version) const {
  if (version == 0 && plan.canary != 0) {
    const ModelStatus* const canary = FindLoaded(plan.canary);
    // Relaxed: only the count matters.
    if (canary != nullptr &&
        GoesToCanary(unnamed->fetch_add(1, std::memory_order_relaxed), plan.canary_millionths)) {
      return canary;
    }
  }
  return FindLoaded(version);
}

absl::Status CheckNameAndVersion(absl::string_view name, std::int64_t version) {
  if (absl::Status status = CheckModelName(name); !status.ok()) return status;
  if (version < 0) {
    return absl::InvalidArgumentError(absl::StrCat("version: ", version, ", wanted 0 or more"));
  }
  return absl::OkStatus();
}

absl::Status MissingVersion(absl::string_view name, std::int64_t version,
                            const KnownVersions* versions) {
  if (absl::Status status = CheckNameAndVersion(name, version); !status.ok()) return status;
  return absl::NotFoundError(absl::StrCat("model: ", name,
                                          version == 0 ? "" : absl::StrCat(", version ", version),
                                          " is not loaded; ", Describe(versions)));
}

absl::Status MissingAlias(absl::string_view name, absl::string_view alias,
                          const KnownVersions* versions) {
  if (absl::Status status = CheckModelName(name); !status.ok()) return status;
  const std::string shown = absl::StrCat("\"", Printable(alias, 32), "\"");
  if (versions == nullptr || versions->plan.aliases.empty()) {
    // The field of the only protocol with aliases.
    return absl::InvalidArgumentError(
        absl::StrCat("model_version: ", shown, ", wanted a number from 1: the model has no alias"));
  }
  const auto pair = [](std::string* out, const auto& entry) {
    absl::StrAppend(out, entry.first, " (", entry.second, ")");
  };
  return absl::NotFoundError(
      absl::StrCat("model: ", name, " has no version ", shown, "; ", Describe(versions),
                   "; names: ", absl::StrJoin(versions->plan.aliases, ", ", pair)));
}

}  // namespace normd
