// Decides which identities have their own series, and for how long.

#ifndef NORMD_SERVER_METRICS_IDENTITY_SERIES_H_
#define NORMD_SERVER_METRICS_IDENTITY_SERIES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"
#include "server/metrics/families.h"
#include "server/metrics/handles.h"
#include "server/metrics/sharded_cells.h"

namespace normd {

inline constexpr std::size_t kMaxIdentitySeries = 1000;

class IdentitySeries final : public IdentityMetrics {
 public:
  void RecordCall(absl::StatusCode code, std::int64_t input_bytes) override;
  // Nothing, while nothing was recorded.
  void Collect(absl::string_view identity, FamilyList& out) const;

 private:
  static constexpr std::size_t kOutcomes = 4;
  ShardedCells cells_{kOutcomes + 1};  // Calls by outcome; the inputs' bytes.
};

// Like SeriesSet: an identity's series live as long as a handle of theirs and are in two more
// scrapes. At most kMaxIdentitySeries names have their own, and the others count together under
// identity="_other", which is no identity's name. Thread-safe. Handles keep the set alive.
class IdentitySeriesSet : public std::enable_shared_from_this<IdentitySeriesSet> {
 public:
  static std::shared_ptr<IdentitySeriesSet> Create();

  std::shared_ptr<IdentityMetrics> Handle(absl::string_view name);
  // One scrape.
  void Collect(FamilyList& out);

 private:
  static constexpr int kLastScrapes = 2;
  struct Slot {
    // shared: a scrape reads it while it vanishes.
    std::shared_ptr<IdentitySeries> series = std::make_shared<IdentitySeries>();
    std::int64_t handles = 0;  // 0: retired.
    int scrapes_left = 0;
  };

  IdentitySeriesSet() = default;
  void LetGo(const std::string& name);

  const std::shared_ptr<IdentitySeries> other_ = std::make_shared<IdentitySeries>();
  Mutex mutex_;
  // At most kMaxIdentitySeries, retired ones among them.
  std::map<std::string, Slot, std::less<>> slots_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace normd

#endif  // NORMD_SERVER_METRICS_IDENTITY_SERIES_H_
