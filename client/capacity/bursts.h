// Arrivals that come in bursts.

#ifndef NORMD_CLIENT_CAPACITY_BURSTS_H_
#define NORMD_CLIENT_CAPACITY_BURSTS_H_

#include <cstdint>
#include <memory>

#include "base/clock.h"
#include "client/load/arrivals.h"

namespace normd::capacity {

struct Bursts {
  double factor = 4;   // The rate within a burst, as a multiple of that between them.
  double share = 0.1;  // Of the time that is a burst: above 0 and below 1.
  Duration length = std::chrono::milliseconds(200);  // Of a burst, in the mean; above 0.
};

// A Poisson process whose rate alternates between two, each for exponentially distributed times
// (Markov-modulated), with `rate_per_s` in the mean. Begins between two bursts. The same seed gives
// the same times.
std::unique_ptr<load::Arrivals> BurstyArrivals(double rate_per_s, const Bursts& bursts,
                                               std::uint64_t seed);

}  // namespace normd::capacity

#endif  // NORMD_CLIENT_CAPACITY_BURSTS_H_
