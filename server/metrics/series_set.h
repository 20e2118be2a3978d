// Decides which models have their own series, and for how long.

#ifndef NORMD_SERVER_METRICS_SERIES_SET_H_
#define NORMD_SERVER_METRICS_SERIES_SET_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/mutex.h"
#include "server/metrics/families.h"
#include "server/metrics/handles.h"
#include "server/metrics/model_series.h"

namespace normd {

// The series of all model versions.
// - A version's series live as long as a handle of theirs. When the last is gone they retire: they
//   are in the next kLastScrapes scrapes, so that the last counts are seen, and then vanish. A new
//   handle for the same version in between finds them unchanged.
// - At most kMaxRetired versions are retired at a time. The one that retired first then vanishes,
//   seen or not, so memory stays bounded if nobody scrapes.
// - At most `max_own` versions with a handle have their own series. Later ones count together under
//   model="_other" for as long as their handles live.
// Thread-safe. Handles keep the set alive.
class SeriesSet : public std::enable_shared_from_this<SeriesSet> {
 public:
  static constexpr int kLastScrapes = 2;
  static constexpr std::size_t kMaxRetired = 100;

  static std::shared_ptr<SeriesSet> Create(std::int64_t max_own);

  std::shared_ptr<ModelMetrics> Handle(absl::string_view name, std::int64_t version);
  ModelMetrics& no_model() { return no_model_; }

  // One scrape. Takes the lock only to see which series there are.
  void Collect(FamilyList& out);
  // What every model's calls have come to; no scrape.
  std::vector<ModelTraffic> Read() const;

 private:
  // A model's versions are neighbours.
  using Key = std::pair<std::string, std::int64_t>;
  struct Slot {
    std::shared_ptr<ModelMetrics> series;  // shared: a scrape reads it while it vanishes.
    std::int64_t handles = 0;              // 0: retired.
    int scrapes_left = 0;                  // For one that is retired.
  };

  using Slots = std::map<Key, Slot>;

  explicit SeriesSet(std::int64_t max_own);

  // Null at `max_own`.
  ModelMetrics* Take(const Key& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<ModelSeries> ModelOf(const std::string& name)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LetGo(const Key& key);
  void LetGoOfOther();

  const std::int64_t max_own_;
  ModelMetrics no_model_;
  ModelMetrics other_;

  mutable Mutex mutex_;
  Slots slots_ ABSL_GUARDED_BY(mutex_);
  std::int64_t own_ ABSL_GUARDED_BY(mutex_) = 0;     // Slots with a handle.
  std::int64_t others_ ABSL_GUARDED_BY(mutex_) = 0;  // Handles of other_.
  // Ordered by retirement, the first in front. Never grows beyond its first capacity.
  std::vector<Slots::iterator> retired_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace normd

#endif  // NORMD_SERVER_METRICS_SERIES_SET_H_
