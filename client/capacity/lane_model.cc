#include "client/capacity/lane_model.h"

#include <algorithm>
#include <cmath>

#include "absl/status/status.h"

namespace normd::capacity {
namespace {

constexpr std::size_t kQuantiles = 2048;
constexpr double kEnoughBatches = 20;

double MeanNs(const load::Histogram& times) {
  return static_cast<double>(times.sum().count()) / static_cast<double>(times.count());
}

// Sums for a least-squares line through the mean times of batches, each size weighed by how many
// batches it had.
struct LineSums {
  double weight = 0, x = 0, y = 0, xx = 0, xy = 0;

  void Add(double w, double at, double value) {
    weight += w;
    x += w * at;
    y += w * value;
    xx += w * at * at;
    xy += w * at * value;
  }
};

}  // namespace

Quantiles::Quantiles(const load::Histogram& measured) {
  const auto all = static_cast<double>(measured.count());
  double before = 0;
  for (const load::Histogram::Bucket& bucket : measured.Buckets()) {
    const double upto = before + static_cast<double>(bucket.count);
    // The places in the middle of each equal share that fall into this bucket.
    while (values_.size() < kQuantiles &&
           (static_cast<double>(values_.size()) + 0.5) * all <= upto * kQuantiles) {
      values_.push_back(bucket.lower + bucket.width / 2);
    }
    before = upto;
  }
}

absl::StatusOr<LaneModel> LaneModel::Fit(const load::LaneTimes& measured) {
  LaneModel model;
  LineSums sums;
  for (const auto& [requests, times] : measured.by_batch()) {
    if (times.count() == 0) continue;
    const auto n = static_cast<double>(requests);
    const double batches = static_cast<double>(times.count()) / n;
    sums.Add(batches, n, MeanNs(times));
    if (batches >= kEnoughBatches) model.sizes_[requests] = {MeanNs(times), Quantiles(times)};
  }
  if (sums.weight == 0) {
    return absl::InvalidArgumentError("no response told of its batch, wanted a run with some");
  }
  const double spread = sums.weight * sums.xx - sums.x * sums.x;
  // One size does not tell what a batch costs and what each of its requests.
  if (spread > 1e-9 * sums.weight * sums.xx) {
    model.each_ns_ = std::max(0.0, (sums.weight * sums.xy - sums.x * sums.y) / spread);
    model.base_ns_ = (sums.y - model.each_ns_ * sums.x) / sums.weight;
  }
  if (spread <= 1e-9 * sums.weight * sums.xx || model.base_ns_ < 0) {
    model.base_ns_ = 0;
    model.each_ns_ = sums.xy / sums.xx;
  }
  return model;
}

LaneModel LaneModel::Exactly(Duration base, Duration each) {
  LaneModel model;
  model.base_ns_ = static_cast<double>(base.count());
  model.each_ns_ = static_cast<double>(each.count());
  return model;
}

LaneModel LaneModel::Exponential(Duration mean) {
  LaneModel model = Exactly(mean, Duration{0});
  model.exponential_ = true;
  return model;
}

const LaneModel::Size* LaneModel::Nearest(std::int64_t requests) const {
  if (sizes_.empty()) return nullptr;
  const auto above = sizes_.lower_bound(requests);
  if (above == sizes_.begin()) return &above->second;
  const auto below = std::prev(above);
  if (above == sizes_.end()) return &below->second;
  return above->first - requests < requests - below->first ? &above->second : &below->second;
}

Duration LaneModel::Draw(std::int64_t requests, client::SplitMix64& random) const {
  if (exponential_) {
    return Duration(std::llround(-std::log1p(-random.NextDouble()) * base_ns_));
  }
  const Size* const nearest = Nearest(requests);
  if (nearest == nullptr) return Duration(std::llround(Line(requests)));
  const auto drawn = static_cast<double>(nearest->times.Draw(random).count());
  if (nearest->mean_ns <= 0) return Duration{0};
  const auto mean = static_cast<double>(Mean(requests).count());
  return Duration(std::llround(drawn * mean / nearest->mean_ns));
}

Duration LaneModel::Mean(std::int64_t requests) const {
  const auto own = sizes_.find(requests);
  return Duration(std::llround(own == sizes_.end() ? Line(requests) : own->second.mean_ns));
}

double LaneModel::MaxRate(std::int64_t max_batch_requests) const {
  double most = 0;
  for (std::int64_t n = 1; n <= max_batch_requests; ++n) {
    const double mean_ns = std::max(1.0, static_cast<double>((Mean(n) + turnaround_).count()));
    most = std::max(most, 1e9 * static_cast<double>(n) / mean_ns);
  }
  return most;
}

}  // namespace normd::capacity
