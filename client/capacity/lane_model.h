// How long a replica's lane takes for a batch, and what a request takes beside its lane.

#ifndef NORMD_CLIENT_CAPACITY_LANE_MODEL_H_
#define NORMD_CLIENT_CAPACITY_LANE_MODEL_H_

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "client/load/histogram.h"
#include "client/load/lane_times.h"
#include "client/tensor/random.h"

namespace normd::capacity {

// Values of equal probability, in ascending order: a measured distribution that is drawn from in
// constant time. The tail beyond its 2048 values is their largest.
class Quantiles {
 public:
  // All zero.
  Quantiles() : values_{Duration{0}} {}
  // Of a histogram with at least one value.
  explicit Quantiles(const load::Histogram& measured);
  explicit Quantiles(Duration always) : values_{always} {}

  Duration Draw(client::SplitMix64& random) const {
    const double place = random.NextDouble() * static_cast<double>(values_.size());
    return values_[static_cast<std::size_t>(place)];
  }

 private:
  std::vector<Duration> values_;
};

// A value.
class LaneModel {
 public:
  // A size of which at least 20 batches were measured has the distribution of these. Any other has
  // the spread of the nearest such size around a line fitted to the means of all: base + n * each,
  // both at least 0, or n * each where only one size was seen. InvalidArgument when none was.
  static absl::StatusOr<LaneModel> Fit(const load::LaneTimes& measured);
  // base + n * each, always.
  static LaneModel Exactly(Duration base, Duration each);
  // Exponentially distributed, with this mean for every size.
  static LaneModel Exponential(Duration mean);

  // Of a batch of so many requests, at least 1.
  Duration Draw(std::int64_t requests, client::SplitMix64& random) const;
  Duration Mean(std::int64_t requests) const;

  // What a lane does after a batch's results are there, until it takes the next: it hands out
  // responses and wakes. Nothing, unless it is set.
  Duration turnaround() const { return turnaround_; }
  void set_turnaround(Duration turnaround) { turnaround_ = turnaround; }

  // The most requests per second that a lane can do in batches of at most `max_batch_requests`,
  // with the turnaround.
  double MaxRate(std::int64_t max_batch_requests) const;

  Duration base() const { return Duration(static_cast<Duration::rep>(base_ns_)); }
  Duration each() const { return Duration(static_cast<Duration::rep>(each_ns_)); }
  std::int64_t largest_measured() const { return sizes_.empty() ? 0 : sizes_.rbegin()->first; }

 private:
  struct Size {
    double mean_ns = 0;
    Quantiles times;
  };
  const Size* Nearest(std::int64_t requests) const;
  double Line(std::int64_t requests) const {
    return base_ns_ + each_ns_ * static_cast<double>(requests);
  }

  double base_ns_ = 0;
  double each_ns_ = 0;
  Duration turnaround_{0};
  bool exponential_ = false;
  std::map<std::int64_t, Size> sizes_;  // Those with enough batches.
};

}  // namespace normd::capacity

#endif  // NORMD_CLIENT_CAPACITY_LANE_MODEL_H_
