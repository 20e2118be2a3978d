#include "server/metrics/series_set.h"

#include <algorithm>
#include <limits>

namespace normd {
namespace {

// No model's name: those begin with a letter or a digit.
constexpr char kOtherModel[] = "_other";

}  // namespace

SeriesSet::SeriesSet(std::int64_t max_own)
    : max_own_(max_own),
      no_model_(std::make_shared<ModelSeries>(""), 0),
      other_(std::make_shared<ModelSeries>(kOtherModel), 0) {
  retired_.reserve(kMaxRetired + 1);
}

std::shared_ptr<SeriesSet> SeriesSet::Create(std::int64_t max_own) {
  return std::shared_ptr<SeriesSet>(new SeriesSet(max_own));
}

std::shared_ptr<ModelMetrics> SeriesSet::Handle(absl::string_view name, std::int64_t version) {
  Key key(std::string(name), version);
  // shared: handles outlive the server's Metrics where a call does.
  std::shared_ptr<SeriesSet> self = shared_from_this();
  MutexLock lock(mutex_);
  ModelMetrics* const series = Take(key);
  if (series != nullptr) {
    return {series, [self = std::move(self), key = std::move(key)](void*) { self->LetGo(key); }};
  }
  ++others_;
  return {&other_, [self = std::move(self)](void*) { self->LetGoOfOther(); }};
}

ModelMetrics* SeriesSet::Take(const Key& key) {
  const auto found = slots_.find(key);
  const bool taken = found != slots_.end() && found->second.handles > 0;
  if (!taken && own_ >= max_own_) return nullptr;
  if (found == slots_.end()) {
    auto series = std::make_shared<ModelMetrics>(ModelOf(key.first), key.second);
    ModelMetrics* const raw = series.get();
    slots_.emplace(key, Slot{std::move(series), 1, 0});
    ++own_;
    return raw;
  }
  if (!taken) {
    retired_.erase(std::find(retired_.begin(), retired_.end(), found));
    ++own_;
  }
  ++found->second.handles;
  return found->second.series.get();
}

std::shared_ptr<ModelSeries> SeriesSet::ModelOf(const std::string& name) {
  const auto version = slots_.lower_bound({name, std::numeric_limits<std::int64_t>::min()});
  if (version != slots_.end() && version->first.first == name) {
    return version->second.series->model();
  }
  return std::make_shared<ModelSeries>(name);
}

void SeriesSet::LetGo(const Key& key) {
  std::shared_ptr<ModelMetrics> gone;  // Freed after the lock.
  MutexLock lock(mutex_);
  const auto slot = slots_.find(key);
  if (--slot->second.handles > 0) return;
  --own_;
  slot->second.scrapes_left = kLastScrapes;
  retired_.push_back(slot);
  if (retired_.size() <= kMaxRetired) return;
  const auto first = retired_.front();
  retired_.erase(retired_.begin());
  gone = std::move(first->second.series);
  slots_.erase(first);
}

void SeriesSet::LetGoOfOther() {
  MutexLock lock(mutex_);
  --others_;
}

std::vector<ModelTraffic> SeriesSet::Read() const {
  std::vector<std::shared_ptr<const ModelSeries>> models;
  {
    MutexLock lock(mutex_);
    for (const auto& [key, slot] : slots_) {
      if (models.empty() || models.back() != slot.series->model()) {
        models.push_back(slot.series->model());
      }
    }
  }
  std::vector<ModelTraffic> traffic;
  traffic.reserve(models.size() + 2);
  for (const auto& model : models) traffic.push_back(model->Read());
  for (const ModelMetrics* common : {&no_model_, &other_}) {
    traffic.push_back(common->model()->Read());
  }
  return traffic;
}

void SeriesSet::Collect(FamilyList& out) {
  // In the order of the slots, so that a model's versions are neighbours.
  std::vector<std::shared_ptr<const ModelMetrics>> versions;
  std::int64_t others = 0;
  {
    MutexLock lock(mutex_);
    versions.reserve(slots_.size());
    for (const auto& [key, slot] : slots_) versions.push_back(slot.series);
    others = others_;
    std::erase_if(retired_, [this](Slots::iterator slot) ABSL_NO_THREAD_SAFETY_ANALYSIS {
      if (--slot->second.scrapes_left > 0) return false;
      slots_.erase(slot);
      return true;
    });
  }
  const ModelSeries* model = nullptr;
  for (const auto& version : versions) {
    if (version->model().get() != model) {
      model = version->model().get();
      model->Collect(out);
    }
    version->Collect(out);
  }
  for (const ModelMetrics* common : {&no_model_, &other_}) {
    common->model()->Collect(out);
    common->Collect(out);
  }
  out.Add(families::kModelsWithoutSeries, {}, static_cast<double>(others));
}

}  // namespace normd
