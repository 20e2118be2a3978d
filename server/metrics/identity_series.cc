#include "server/metrics/identity_series.h"

#include <iterator>
#include <utility>
#include <vector>

namespace normd {
namespace {

enum Outcome : std::size_t { kOk, kDenied, kLimited, kFailed, kOutcomeCount };
constexpr std::array<const char*, kOutcomeCount> kNames = {"ok", "denied", "limited", "failed"};
// No identity's name: those begin with a letter or a digit.
constexpr char kOtherIdentity[] = "_other";

Outcome OutcomeOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk: return kOk;
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated: return kDenied;
    case absl::StatusCode::kResourceExhausted: return kLimited;
    default: return kFailed;
  }
}

}  // namespace

void IdentitySeries::RecordCall(absl::StatusCode code, std::int64_t input_bytes) {
  static_assert(kOutcomes == kOutcomeCount);
  cells_.Add(OutcomeOf(code), 1);
  if (input_bytes > 0) cells_.Add(kOutcomes, input_bytes);
}

void IdentitySeries::Collect(absl::string_view identity, FamilyList& out) const {
  std::array<std::int64_t, kOutcomes> calls{};
  std::int64_t all = 0;
  for (std::size_t i = 0; i < kOutcomes; ++i) all += calls[i] = cells_.Sum(i);
  if (all == 0) return;
  for (std::size_t i = 0; i < kOutcomes; ++i) {
    out.Add(families::kIdentityCalls, {identity, kNames[i]}, static_cast<double>(calls[i]));
  }
  out.Add(families::kIdentityInputBytes, {identity}, static_cast<double>(cells_.Sum(kOutcomes)));
}

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
  std::vector<std::pair<std::string, std::shared_ptr<const IdentitySeries>>> series;
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
