// The series of one model, and those of one of its versions.

#ifndef NORMD_SERVER_METRICS_MODEL_SERIES_H_
#define NORMD_SERVER_METRICS_MODEL_SERIES_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/metrics/families.h"
#include "server/metrics/handles.h"
#include "server/metrics/histogram.h"
#include "server/metrics/sharded_cells.h"
#include "server/metrics/traffic.h"

namespace normd {

// The shared series of a model's versions: every series without the label `version`. A series
// appears with its first recording and takes almost no memory before; the queue and the rejections
// appear with the model's first request, so that their rates see the first increment. Thread-safe.
class ModelSeries {
 public:
  // An empty name: requests that mean no loaded model, which have no queue.
  explicit ModelSeries(absl::string_view name);

  const std::string& name() const { return name_; }
  void RecordRequest(Method method, absl::StatusCode code, Duration duration);
  void RecordStages(const StageTimes& stages);
  void RecordBatch(std::int64_t requests, std::int64_t bytes);
  void RecordRejection(Rejection reason);
  void AddQueued(std::int64_t requests) { queued_.Add(0, requests); }
  void RecordLoad(Duration duration) { load_duration_.Record(duration.count()); }

  void Collect(FamilyList& out) const;
  ModelTraffic Read() const;

 private:
  bool WasAsked() const;

  const std::string name_;
  std::vector<Histogram> request_durations_;  // By method.
  ShardedCells failed_;                       // Likewise: those with another code than OK.
  std::vector<Histogram> stage_durations_;    // By stage.
  Histogram batch_requests_;
  Histogram batch_bytes_;
  Histogram load_duration_;
  ShardedCells queued_;
  ShardedCells rejected_;  // By reason.
};

// The counts behind ModelTotals. Takes no memory before the first recording. Thread-safe.
class VersionTotals {
 public:
  VersionTotals();

  void RecordRequest(bool succeeded, Duration duration);
  void RecordStages(const StageTimes& stages, std::int64_t batch_requests);
  void RecordBatch(std::int64_t requests);
  ModelTotals Read() const;

 private:
  ShardedCells cells_;
  // Relaxed: nothing else is published with it.
  std::atomic<std::int64_t> last_success_ms_{0};
};

// The series of one model version. Thread-safe.
class ModelMetrics {
 public:
  // `model` is shared among a model's versions. Version 0 is exposed as an empty label.
  explicit ModelMetrics(std::shared_ptr<ModelSeries> model = std::make_shared<ModelSeries>(""),
                        std::int64_t version = 0);

  const std::shared_ptr<ModelSeries>& model() const { return model_; }

  // One finished request: its code, and the time from arrival to the response's hand-over.
  void RecordRequest(Method method, absl::StatusCode code, Duration duration);
  // A completed request, or a stream's piece, in a batch of so many; stages that did not happen are
  // left out.
  void RecordStages(const StageTimes& stages, std::int64_t batch_requests = 1) {
    model_->RecordStages(stages);
    totals_.RecordStages(stages, batch_requests);
  }
  void RecordBatch(std::int64_t requests, std::int64_t bytes) {
    model_->RecordBatch(requests, bytes);
    totals_.RecordBatch(requests);
  }
  void RecordRejection(Rejection reason) { model_->RecordRejection(reason); }
  void AddQueued(std::int64_t requests) { model_->AddQueued(requests); }  // Negative: they leave.
  void RecordLoad(Duration duration) { model_->RecordLoad(duration); }
  ModelTotals Totals() const { return totals_.Read(); }

  // Only the codes that have occurred, and not the model's series.
  void Collect(FamilyList& out) const;

 private:
  const std::shared_ptr<ModelSeries> model_;  // shared: the last version to go takes it along.
  const std::string version_;
  std::vector<ShardedCells> requests_;  // By method, then code.
  VersionTotals totals_;
};

}  // namespace normd

#endif  // NORMD_SERVER_METRICS_MODEL_SERIES_H_
