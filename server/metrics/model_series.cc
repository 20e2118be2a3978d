#include "server/metrics/model_series.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"

namespace normd {
namespace {

constexpr std::array<const char*, 7> kMethodNames = {
    "Normalize", "NormalizeStream", "ListModels",   "GetModel",
    "LoadModel", "UnloadModel",     "GetServerInfo"};
constexpr std::array<const char*, 8> kRejectionNames = {
    "queue_full", "inflight_bytes",   "inflight_requests", "draining",
    "not_ready",  "connection_share", "peer_share",        "late"};
constexpr std::array<const char*, kStageCount> kStageNames = {
    "decode", "queue", "gather", "copy_in", "compute", "copy_out", "encode"};
constexpr std::size_t kCodeCount = 17;  // OK to UNAUTHENTICATED, as gRPC numbers them.

static_assert(kMethodNames.size() == static_cast<std::size_t>(Method::kGetServerInfo) + 1);
static_assert(kRejectionNames.size() == static_cast<std::size_t>(Rejection::kLate) + 1);

std::vector<Histogram> DurationHistograms(std::size_t count) {
  std::vector<Histogram> histograms;
  histograms.reserve(count);
  for (std::size_t i = 0; i < count; ++i) histograms.emplace_back(DurationScale());
  return histograms;
}

}  // namespace

absl::string_view MethodName(Method method) {
  return kMethodNames[static_cast<std::size_t>(method)];
}

ModelSeries::ModelSeries(absl::string_view name)
    : name_(name),
      request_durations_(DurationHistograms(kMethodNames.size())),
      stage_durations_(DurationHistograms(kStageCount)),
      batch_requests_(BatchRequestsScale()),
      batch_bytes_(BatchBytesScale()),
      load_duration_(LoadScale()),
      queued_(1),
      rejected_(kRejectionNames.size()) {}

void ModelSeries::RecordDuration(Method method, Duration duration) {
  request_durations_[static_cast<std::size_t>(method)].Record(duration.count());
}

void ModelSeries::RecordStages(const StageTimes& stages) {
  for (std::size_t i = 0; i < kStageCount; ++i) {
    const Duration time = stages[static_cast<Stage>(i)];
    if (time != Duration::zero()) stage_durations_[i].Record(time.count());
  }
}

void ModelSeries::RecordBatch(std::int64_t requests, std::int64_t bytes) {
  batch_requests_.Record(requests);
  batch_bytes_.Record(bytes);
}

void ModelSeries::RecordRejection(Rejection reason) {
  rejected_.Add(static_cast<std::size_t>(reason), 1);
}

bool ModelSeries::WasAsked() const {
  const auto used = [](const Histogram& histogram) { return !histogram.Untouched(); };
  return std::any_of(request_durations_.begin(), request_durations_.end(), used) ||
         !queued_.Untouched();
}

void ModelSeries::Collect(FamilyList& out) const {
  const auto add = [&out](Family family, FamilyList::Labels labels, const Histogram& histogram) {
    if (!histogram.Untouched()) out.Add(family, labels, histogram);
  };
  for (std::size_t i = 0; i < kMethodNames.size(); ++i) {
    add(Family::kRequestDuration, {name_, kMethodNames[i]}, request_durations_[i]);
  }
  for (std::size_t i = 0; i < kStageCount; ++i) {
    add(Family::kStageDuration, {name_, kStageNames[i]}, stage_durations_[i]);
  }
  add(Family::kBatchRequests, {name_}, batch_requests_);
  add(Family::kBatchBytes, {name_}, batch_bytes_);
  add(Family::kModelLoadDuration, {name_}, load_duration_);
  const bool all = !name_.empty() && WasAsked();
  for (std::size_t i = 0; i < kRejectionNames.size(); ++i) {
    const std::int64_t rejected = rejected_.Sum(i);
    if (all || rejected > 0) {
      out.Add(Family::kRejected, {name_, kRejectionNames[i]}, static_cast<double>(rejected));
    }
  }
  if (all) {
    // A request that leaves one shard's count while the sum is taken can make it negative.
    const std::int64_t queued = std::max<std::int64_t>(queued_.Sum(0), 0);
    out.Add(Family::kQueueRequests, {name_}, static_cast<double>(queued));
  }
}

VersionSeries::VersionSeries(std::shared_ptr<ModelSeries> model, std::int64_t version)
    : model_(std::move(model)), version_(version == 0 ? "" : absl::StrCat(version)) {
  requests_.reserve(kMethodNames.size());
  for (std::size_t i = 0; i < kMethodNames.size(); ++i) requests_.emplace_back(kCodeCount);
}

void VersionSeries::RecordRequest(Method method, absl::StatusCode code, Duration duration) {
  auto number = static_cast<std::size_t>(code);
  if (number >= kCodeCount) number = static_cast<std::size_t>(absl::StatusCode::kUnknown);
  requests_[static_cast<std::size_t>(method)].Add(number, 1);
  model_->RecordDuration(method, duration);
}

void VersionSeries::Collect(FamilyList& out) const {
  for (std::size_t method = 0; method < kMethodNames.size(); ++method) {
    if (requests_[method].Untouched()) continue;
    for (std::size_t code = 0; code < kCodeCount; ++code) {
      const std::int64_t requests = requests_[method].Sum(code);
      if (requests == 0) continue;
      out.Add(Family::kRequests,
              {model_->name(), version_, kMethodNames[method],
               absl::StatusCodeToString(static_cast<absl::StatusCode>(code))},
              static_cast<double>(requests));
    }
  }
}

}  // namespace normd
