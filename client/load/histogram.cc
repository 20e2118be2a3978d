#include "client/load/histogram.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace normd::load {
namespace {

constexpr int kSubBits = 10;
constexpr std::size_t kSubBuckets = std::size_t{1} << kSubBits;
constexpr int kMaxBits = 40;
constexpr std::uint64_t kMaxValue = (std::uint64_t{1} << kMaxBits) - 1;
constexpr std::size_t kMaxIndex = (kMaxBits - kSubBits - 1) * kSubBuckets + 2 * kSubBuckets - 1;

// A value keeps its top 11 bits; the number of bits dropped selects the power of two.
std::size_t IndexOf(Duration value) {
  const std::uint64_t v = std::min(static_cast<std::uint64_t>(value.count()), kMaxValue);
  const int shift = std::max(0, static_cast<int>(std::bit_width(v)) - (kSubBits + 1));
  return static_cast<std::size_t>(shift) * kSubBuckets + (v >> shift);
}

struct Range {
  std::int64_t lower;
  std::int64_t width;
};

Range RangeOf(std::size_t index) {
  if (index < 2 * kSubBuckets) return {static_cast<std::int64_t>(index), 1};
  const std::size_t shift = index / kSubBuckets - 1;
  return {static_cast<std::int64_t>((index - shift * kSubBuckets) << shift),
          std::int64_t{1} << shift};
}

}  // namespace

void Histogram::Record(Duration value) {
  value = std::max(value, Duration{0});
  Add(IndexOf(value), 1);
  sum_ += value;
  min_ = std::min(min_, value);
  max_ = std::max(max_, value);
}

bool Histogram::Add(std::size_t index, std::int64_t count) {
  if (index > kMaxIndex || count < 0) return false;
  if (index >= counts_.size()) counts_.resize(index + 1);
  counts_[index] += count;
  count_ += count;
  return true;
}

void Histogram::SetExtremes(Duration min, Duration max, Duration sum) {
  min_ = min;
  max_ = max;
  sum_ = sum;
}

void Histogram::Merge(const Histogram& other) {
  if (other.counts_.size() > counts_.size()) counts_.resize(other.counts_.size());
  for (std::size_t i = 0; i < other.counts_.size(); ++i) counts_[i] += other.counts_[i];
  count_ += other.count_;
  sum_ += other.sum_;
  min_ = std::min(min_, other.min_);
  max_ = std::max(max_, other.max_);
}

Histogram Histogram::Since(const Histogram& earlier) const {
  Histogram difference;
  difference.counts_ = counts_;
  for (std::size_t i = 0; i < earlier.counts_.size(); ++i) {
    difference.counts_[i] -= earlier.counts_[i];
  }
  difference.count_ = count_ - earlier.count_;
  difference.sum_ = sum_ - earlier.sum_;
  const std::vector<Bucket> buckets = difference.Buckets();
  if (!buckets.empty()) {
    difference.min_ = buckets.front().lower;
    difference.max_ = std::min(max_, buckets.back().lower + buckets.back().width - Duration{1});
  }
  return difference;
}

Duration Histogram::mean() const { return count_ == 0 ? Duration{0} : sum_ / count_; }

Duration Histogram::Percentile(double percent) const {
  if (count_ == 0) return Duration{0};
  const auto rank =
      static_cast<std::int64_t>(std::ceil(percent / 100 * static_cast<double>(count_)));
  if (rank <= 1) return min_;
  if (rank >= count_) return max_;
  std::int64_t seen = 0;
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    seen += counts_[i];
    if (seen >= rank) {
      const Range range = RangeOf(i);
      return std::clamp(Duration{range.lower + (range.width - 1) / 2}, min_, max_);
    }
  }
  return max_;
}

std::vector<Histogram::Bucket> Histogram::Buckets() const {
  std::vector<Bucket> buckets;
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    if (counts_[i] == 0) continue;
    const Range range = RangeOf(i);
    buckets.push_back({i, Duration{range.lower}, Duration{range.width}, counts_[i]});
  }
  return buckets;
}

}  // namespace normd::load
