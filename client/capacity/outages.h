// When replicas of a simulated fleet fail, and how.

#ifndef NORMD_CLIENT_CAPACITY_OUTAGES_H_
#define NORMD_CLIENT_CAPACITY_OUTAGES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/clock.h"

namespace normd::capacity {

enum class OutageKind {
  kCrash,  // What the replica has is lost, and clients know at once.
  kHang,   // It stands still, with all that it has, and clients do not know yet.
};

struct Outage {
  std::size_t replica = 0;
  OutageKind kind = OutageKind::kCrash;
  Duration begin{0};
  Duration length{0};
};

// Each replica fails for `length`, exponentially distributed times of `mean_between` after its last
// outage, in [0, until). In the order of their beginnings. The same seed gives the same outages.
struct OutageRates {
  OutageKind kind = OutageKind::kCrash;
  Duration mean_between{0};  // 0: none.
  Duration length{0};
};
std::vector<Outage> RandomOutages(const OutageRates& rates, std::size_t replicas, Duration until,
                                  std::uint64_t seed);

}  // namespace normd::capacity

#endif  // NORMD_CLIENT_CAPACITY_OUTAGES_H_
