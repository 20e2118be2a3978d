// The series of the model repository.

#ifndef NORMD_SERVER_METRICS_REPOSITORY_SERIES_H_
#define NORMD_SERVER_METRICS_REPOSITORY_SERIES_H_

#include <atomic>
#include <cstdint>

#include "server/metrics/families.h"
#include "server/metrics/handles.h"

namespace normd {

// Thread-safe. Relaxed: nothing else is published with these.
class RepositorySeries final : public RepositoryMetrics {
 public:
  void SetVersions(const VersionCounts& counts) override {
    loaded_.store(counts.loaded, std::memory_order_relaxed);
    failed_.store(counts.failed, std::memory_order_relaxed);
  }
  void RecordLoadFailure() override { failures_.fetch_add(1, std::memory_order_relaxed); }
  void RecordPoll(bool complete) override {
    (complete ? complete_ : incomplete_).fetch_add(1, std::memory_order_relaxed);
  }

  void Collect(FamilyList& out) const {
    const auto get = [](const Number& number) {
      return static_cast<double>(number.load(std::memory_order_relaxed));
    };
    out.Add(Family::kModelVersions, {"loaded"}, get(loaded_));
    out.Add(Family::kModelVersions, {"failed"}, get(failed_));
    out.Add(Family::kModelLoadFailures, {}, get(failures_));
    out.Add(Family::kRepositoryPolls, {"complete"}, get(complete_));
    out.Add(Family::kRepositoryPolls, {"incomplete"}, get(incomplete_));
  }

 private:
  using Number = std::atomic<std::int64_t>;

  Number loaded_{0};
  Number failed_{0};
  Number failures_{0};
  Number complete_{0};
  Number incomplete_{0};
};

}  // namespace normd

#endif  // NORMD_SERVER_METRICS_REPOSITORY_SERIES_H_
