#include "client/capacity/outages.h"

#include <algorithm>
#include <cmath>

#include "client/tensor/random.h"

namespace normd::capacity {

std::vector<Outage> RandomOutages(const OutageRates& rates, std::size_t replicas, Duration until,
                                  std::uint64_t seed) {
  std::vector<Outage> outages;
  if (rates.mean_between <= Duration{0}) return outages;
  client::SplitMix64 random(seed);
  const auto mean = static_cast<double>(rates.mean_between.count());
  const auto end = static_cast<double>(until.count());
  for (std::size_t replica = 0; replica < replicas; ++replica) {
    double at = 0;
    for (;;) {
      at += -std::log1p(-random.NextDouble()) * mean;
      if (at >= end) break;
      outages.push_back({replica, rates.kind, Duration(std::llround(at)), rates.length});
      at += static_cast<double>(rates.length.count());
    }
  }
  std::stable_sort(outages.begin(), outages.end(),
                   [](const Outage& a, const Outage& b) { return a.begin < b.begin; });
  return outages;
}

}  // namespace normd::capacity
