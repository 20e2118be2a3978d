#include "server/metrics/identity_series.h"

#include <iterator>
#include <utility>
#include <vector>

namespace normd {
namespace {

// No identity's name: those begin with a letter or a digit.
constexpr char kOtherIdentity[] = "_other";

}  // namespace

std::shared_ptr<IdentitySeriesSet> IdentitySeriesSet::Create() {
  return std::shared_ptr<IdentitySeriesSet>(new IdentitySeriesSet());
}

std::shared_ptr<IdentityMetrics> IdentitySeriesSet::Handle(absl::string_view name) {
  // shared: handles outlive the server's Metrics where a call does.
  std::shared_ptr<IdentitySeriesSet> self = shared_from_this();
  std::string key(name);
  MutexLock lock(mutex_);
  auto slot = slots_.find(name);
  if (slot == slots_.end()) {
    if (slots_.size() >= kMaxIdentitySeries) return {std::move(self), other_.get()};
    slot = slots_.try_emplace(key).first;
  }
  ++slot->second.handles;
  return {slot->second.series.get(),
          [self = std::move(self), key = std::move(key)](void*) { self->LetGo(key); }};
}

void IdentitySeriesSet::LetGo(const std::string& name) {
  MutexLock lock(mutex_);
  Slot& slot = slots_.find(name)->second;
  if (--slot.handles == 0) slot.scrapes_left = kLastScrapes;
}

void IdentitySeriesSet::Collect(FamilyList& out) {
  std::vector<std::pair<std::string, std::shared_ptr<const IdentityMetrics>>> series;
  {
    MutexLock lock(mutex_);
    series.reserve(slots_.size() + 1);
    for (const auto& [name, slot] : slots_) series.emplace_back(name, slot.series);
    for (auto slot = slots_.begin(); slot != slots_.end();) {
      const bool ended = slot->second.handles == 0 && --slot->second.scrapes_left <= 0;
      slot = ended ? slots_.erase(slot) : std::next(slot);
    }
  }
  series.emplace_back(kOtherIdentity, other_);
  for (const auto& [name, one] : series) one->Collect(name, out);
}

}  // namespace normd
