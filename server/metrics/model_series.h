// The series of one model, and those of one of its versions.

#ifndef NORMD_SERVER_METRICS_MODEL_SERIES_H_
#define NORMD_SERVER_METRICS_MODEL_SERIES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/metrics/families.h"
#include "server/metrics/histogram.h"
#include "server/metrics/metrics.h"
#include "server/metrics/sharded_cells.h"

namespace normd {

// What all versions of a model share: every series without the label `version`. Thread-safe.
class ModelSeries {
 public:
  // An empty name: the requests that mean no loaded model. Of those, only what has happened is
  // exposed; a model's Normalize, stages, batches, queue and rejections are there from the start,
  // so that a rate sees the first increment.
  explicit ModelSeries(absl::string_view name);

  const std::string& name() const { return name_; }
  void RecordDuration(Method method, Duration duration);
  void RecordStages(const StageTimes& stages);
  void RecordBatch(std::int64_t requests, std::int64_t bytes);
  void RecordRejection(Rejection reason);
  void AddQueued(std::int64_t requests) { queued_.Add(0, requests); }
  void RecordLoad(Duration duration) { load_duration_.Record(duration.count()); }

  void Collect(FamilyList& out) const;

 private:
  const std::string name_;
  std::vector<Histogram> request_durations_;  // By method.
  std::vector<Histogram> stage_durations_;    // By stage.
  Histogram batch_requests_;
  Histogram batch_bytes_;
  Histogram load_duration_;
  ShardedCells queued_;
  ShardedCells rejected_;  // By reason.
};

// Adds the counts by version. Thread-safe.
class VersionSeries final : public ModelMetrics {
 public:
  // `model` outlives this. Version 0 is exposed as an empty label.
  VersionSeries(ModelSeries& model, std::int64_t version);

  void RecordRequest(Method method, absl::StatusCode code, Duration duration) override;
  void RecordStages(const StageTimes& stages) override { model_.RecordStages(stages); }
  void RecordBatch(std::int64_t requests, std::int64_t bytes) override {
    model_.RecordBatch(requests, bytes);
  }
  void RecordRejection(Rejection reason) override { model_.RecordRejection(reason); }
  void AddQueued(std::int64_t requests) override { model_.AddQueued(requests); }
  void RecordLoad(Duration duration) override { model_.RecordLoad(duration); }

  // Only the codes that have occurred.
  void Collect(FamilyList& out) const;

 private:
  ModelSeries& model_;
  const std::string version_;
  ShardedCells requests_;  // By method and code.
};

}  // namespace normd

#endif  // NORMD_SERVER_METRICS_MODEL_SERIES_H_
