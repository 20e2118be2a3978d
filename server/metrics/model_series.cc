#include "server/metrics/model_series.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"

namespace normd {
namespace {

constexpr std::array<const char*, kMethodCount> kMethodNames = {"Normalize",
                                                                "NormalizeStream",
                                                                "ListModels",
                                                                "GetModel",
                                                                "LoadModel",
                                                                "UnloadModel",
                                                                "GetServerInfo",
                                                                "ListSharedMemory",
                                                                "ModelInfer",
                                                                "ModelStreamInfer",
                                                                "ServerLive",
                                                                "ServerReady",
                                                                "ModelReady",
                                                                "ServerMetadata",
                                                                "ModelMetadata",
                                                                "ModelConfig",
                                                                "ModelStatistics",
                                                                "RepositoryIndex",
                                                                "RepositoryModelLoad",
                                                                "RepositoryModelUnload",
                                                                "SystemSharedMemoryStatus",
                                                                "SystemSharedMemoryRegister",
                                                                "SystemSharedMemoryUnregister",
                                                                "CudaSharedMemory",
                                                                "TraceSetting",
                                                                "LogSettings",
                                                                "Infer"};
constexpr std::array<const char*, kRejections> kRejectionNames = {
    "queue_full",    "inflight_bytes",   "inflight_requests", "draining",
    "not_ready",     "connection_share", "peer_share",        "late",
    "identity_rate", "identity_limit",   "connection_calls"};
constexpr std::array<const char*, kStageCount> kStageNames = {
    "decode", "queue", "gather", "copy_in", "compute", "copy_out", "encode"};
constexpr std::size_t kCodeCount = 17;  // OK to UNAUTHENTICATED, as gRPC numbers them.

static_assert(kMethodNames.back() != nullptr);
static_assert(kRejectionNames.back() != nullptr);

// The methods that compute.
bool IsInference(Method method) {
  return method == Method::kNormalize || method == Method::kNormalizeStream ||
         method == Method::kModelInfer || method == Method::kModelStreamInfer ||
         method == Method::kInfer;
}

// The cells of VersionTotals: these, and four for each range of batch sizes.
enum TotalCell : std::size_t {
  kSuccesses,
  kSuccessNs,
  kFailures,
  kFailureNs,
  kQueueNs,
  kInputNs,
  kComputeNs,
  kOutputNs,
  kTotalCells
};
enum BatchCell : std::size_t {
  kBatches,
  kBatchInputNs,
  kBatchComputeNs,
  kBatchOutputNs,
  kBatchCells
};

// The ranges of batch sizes are the histogram's; what lies above is the last one's.
std::size_t BatchRange(std::int64_t requests) {
  const absl::Span<const std::int64_t> bounds = BatchRequestsScale().bounds;
  const auto bound = std::lower_bound(bounds.begin(), bounds.end() - 1, requests);
  return static_cast<std::size_t>(bound - bounds.begin());
}
std::size_t CellOf(std::size_t range, BatchCell cell) {
  return kTotalCells + range * kBatchCells + cell;
}

std::int64_t MillisecondsNow() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

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

absl::string_view RejectionName(Rejection reason) {
  return kRejectionNames[static_cast<std::size_t>(reason)];
}

ModelSeries::ModelSeries(absl::string_view name)
    : name_(name),
      request_durations_(DurationHistograms(kMethodNames.size())),
      failed_(kMethodCount),
      stage_durations_(DurationHistograms(kStageCount)),
      batch_requests_(BatchRequestsScale()),
      batch_bytes_(BatchBytesScale()),
      load_duration_(LoadScale()),
      queued_(1),
      rejected_(kRejectionNames.size()) {}

void ModelSeries::RecordRequest(Method method, absl::StatusCode code, Duration duration) {
  const auto index = static_cast<std::size_t>(method);
  request_durations_[index].Record(duration.count());
  if (code != absl::StatusCode::kOk) failed_.Add(index, 1);
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
  const auto add = [&out](const Family& family, FamilyList::Labels labels,
                          const Histogram& histogram) {
    if (!histogram.Untouched()) out.Add(family, labels, histogram);
  };
  for (std::size_t i = 0; i < kMethodNames.size(); ++i) {
    add(families::kRequestDuration, {name_, kMethodNames[i]}, request_durations_[i]);
  }
  for (std::size_t i = 0; i < kStageCount; ++i) {
    add(families::kStageDuration, {name_, kStageNames[i]}, stage_durations_[i]);
  }
  add(families::kBatchRequests, {name_}, batch_requests_);
  add(families::kBatchBytes, {name_}, batch_bytes_);
  add(families::kModelLoadDuration, {name_}, load_duration_);
  const bool all = !name_.empty() && WasAsked();
  for (std::size_t i = 0; i < kRejectionNames.size(); ++i) {
    const std::int64_t rejected = rejected_.Sum(i);
    if (all || rejected > 0) {
      out.Add(families::kRejected, {name_, kRejectionNames[i]}, static_cast<double>(rejected));
    }
  }
  if (all) {
    // A request that leaves one shard's count while the sum is taken can make it negative.
    const std::int64_t queued = std::max<std::int64_t>(queued_.Sum(0), 0);
    out.Add(families::kQueueRequests, {name_}, static_cast<double>(queued));
  }
}

ModelTraffic ModelSeries::Read() const {
  ModelTraffic traffic{name_, {}, {}, std::max<std::int64_t>(queued_.Sum(0), 0)};
  for (std::size_t i = 0; i < kMethodCount; ++i) {
    const auto method = static_cast<Method>(i);
    if (!IsInference(method) || request_durations_[i].Untouched()) continue;
    MethodTraffic& calls = traffic.methods.emplace_back();
    calls.method = method;
    // Before the durations, which each call is in first.
    calls.failed = failed_.Sum(i);
    request_durations_[i].Count(absl::MakeSpan(calls.durations));
  }
  for (std::size_t i = 0; i < kRejections; ++i) traffic.rejected[i] = rejected_.Sum(i);
  return traffic;
}

VersionTotals::VersionTotals()
    : cells_(kTotalCells + BatchRequestsScale().bounds.size() * kBatchCells) {}

void VersionTotals::RecordRequest(bool succeeded, Duration duration) {
  cells_.Add(succeeded ? kSuccesses : kFailures, 1);
  cells_.Add(succeeded ? kSuccessNs : kFailureNs, duration.count());
  if (!succeeded) return;
  // Most find it as it is, and no core takes the line from another.
  const std::int64_t now = MillisecondsNow();
  if (last_success_ms_.load(std::memory_order_relaxed) == now) return;
  last_success_ms_.store(now, std::memory_order_relaxed);
}

void VersionTotals::RecordStages(const StageTimes& stages, std::int64_t batch_requests) {
  const std::int64_t input = (stages[Stage::kGather] + stages[Stage::kCopyIn]).count();
  const std::int64_t compute = stages[Stage::kCompute].count();
  const std::int64_t output = (stages[Stage::kCopyOut] + stages[Stage::kEncode]).count();
  cells_.Add(kQueueNs, stages[Stage::kQueue].count());
  cells_.Add(kInputNs, input);
  cells_.Add(kComputeNs, compute);
  cells_.Add(kOutputNs, output);
  // Each of a batch's requests has the whole batch's time: a share of each makes it once.
  const std::int64_t requests = std::max<std::int64_t>(batch_requests, 1);
  const std::size_t range = BatchRange(requests);
  cells_.Add(CellOf(range, kBatchInputNs), input / requests);
  cells_.Add(CellOf(range, kBatchComputeNs), compute / requests);
  cells_.Add(CellOf(range, kBatchOutputNs), output / requests);
}

void VersionTotals::RecordBatch(std::int64_t requests) {
  cells_.Add(CellOf(BatchRange(requests), kBatches), 1);
}

ModelTotals VersionTotals::Read() const {
  ModelTotals totals;
  totals.succeeded = {cells_.Sum(kSuccesses), cells_.Sum(kSuccessNs)};
  totals.failed = {cells_.Sum(kFailures), cells_.Sum(kFailureNs)};
  totals.queue_ns = cells_.Sum(kQueueNs);
  totals.input_ns = cells_.Sum(kInputNs);
  totals.compute_ns = cells_.Sum(kComputeNs);
  totals.output_ns = cells_.Sum(kOutputNs);
  totals.last_success_ms = last_success_ms_.load(std::memory_order_relaxed);
  const absl::Span<const std::int64_t> bounds = BatchRequestsScale().bounds;
  for (std::size_t range = 0; range < bounds.size(); ++range) {
    const std::int64_t batches = cells_.Sum(CellOf(range, kBatches));
    if (batches == 0) continue;
    totals.batches += batches;
    totals.by_size.push_back({bounds[range], batches, cells_.Sum(CellOf(range, kBatchInputNs)),
                              cells_.Sum(CellOf(range, kBatchComputeNs)),
                              cells_.Sum(CellOf(range, kBatchOutputNs))});
  }
  return totals;
}

ModelMetrics::ModelMetrics(std::shared_ptr<ModelSeries> model, std::int64_t version)
    : model_(std::move(model)), version_(version == 0 ? "" : absl::StrCat(version)) {
  requests_.reserve(kMethodNames.size());
  for (std::size_t i = 0; i < kMethodNames.size(); ++i) requests_.emplace_back(kCodeCount);
}

void ModelMetrics::RecordRequest(Method method, absl::StatusCode code, Duration duration) {
  auto number = static_cast<std::size_t>(code);
  if (number >= kCodeCount) number = static_cast<std::size_t>(absl::StatusCode::kUnknown);
  requests_[static_cast<std::size_t>(method)].Add(number, 1);
  model_->RecordRequest(method, code, duration);
  if (IsInference(method)) totals_.RecordRequest(code == absl::StatusCode::kOk, duration);
}

void ModelMetrics::Collect(FamilyList& out) const {
  for (std::size_t method = 0; method < kMethodNames.size(); ++method) {
    if (requests_[method].Untouched()) continue;
    for (std::size_t code = 0; code < kCodeCount; ++code) {
      const std::int64_t requests = requests_[method].Sum(code);
      if (requests == 0) continue;
      out.Add(families::kRequests,
              {model_->name(), version_, kMethodNames[method],
               absl::StatusCodeToString(static_cast<absl::StatusCode>(code))},
              static_cast<double>(requests));
    }
  }
}

}  // namespace normd
