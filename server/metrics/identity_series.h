// Decides which identities have their own series, and for how long.

#ifndef NORMD_SERVER_METRICS_IDENTITY_SERIES_H_
#define NORMD_SERVER_METRICS_IDENTITY_SERIES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "base/mutex.h"
#include "server/metrics/families.h"
#include "server/metrics/handles.h"

namespace normd {

inline constexpr std::size_t kMaxIdentitySeries = 1000;

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
    std::shared_ptr<IdentityMetrics> series = std::make_shared<IdentityMetrics>();
    std::int64_t handles = 0;  // 0: retired.
    int scrapes_left = 0;
  };

  IdentitySeriesSet() = default;
  void LetGo(const std::string& name);

  const std::shared_ptr<IdentityMetrics> other_ = std::make_shared<IdentityMetrics>();
  Mutex mutex_;
  // At most kMaxIdentitySeries, retired ones among them.
  std::map<std::string, Slot, std::less<>> slots_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace normd

#endif  // NORMD_SERVER_METRICS_IDENTITY_SERIES_H_
