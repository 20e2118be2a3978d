#include "client/load/histogram.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>

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
  const std::size_t block = index / kBlockBuckets;
  if (block >= blocks_.size()) blocks_.resize(block + 1);
  if (blocks_[block].empty()) blocks_[block].resize(kBlockBuckets);
  blocks_[block][index % kBlockBuckets] += count;
  count_ += count;
  return true;
}

void Histogram::SetExtremes(Duration min, Duration max, Duration sum) {
  min_ = min;
  max_ = max;
  sum_ = sum;
}

void Histogram::Merge(const Histogram& other) {
  if (other.blocks_.size() > blocks_.size()) blocks_.resize(other.blocks_.size());
  for (std::size_t i = 0; i < other.blocks_.size(); ++i) {
    if (other.blocks_[i].empty()) continue;
    if (blocks_[i].empty()) blocks_[i].resize(kBlockBuckets);
    std::transform(blocks_[i].begin(), blocks_[i].end(), other.blocks_[i].begin(),
                   blocks_[i].begin(), std::plus<>());
  }
  count_ += other.count_;
  sum_ += other.sum_;
  min_ = std::min(min_, other.min_);
  max_ = std::max(max_, other.max_);
}

Histogram Histogram::Since(const Histogram& earlier) const {
  Histogram difference;
  difference.blocks_ = blocks_;
  for (std::size_t i = 0; i < earlier.blocks_.size(); ++i) {
    if (earlier.blocks_[i].empty()) continue;
    std::transform(blocks_[i].begin(), blocks_[i].end(), earlier.blocks_[i].begin(),
                   difference.blocks_[i].begin(), std::minus<>());
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
  for (const Bucket& bucket : Buckets()) {
    seen += bucket.count;
    if (seen >= rank) {
      return std::clamp(bucket.lower + (bucket.width - Duration{1}) / 2, min_, max_);
    }
  }
  return max_;
}

std::int64_t Histogram::CountAtMost(Duration value) const {
  if (value < Duration{0}) return 0;
  const std::size_t last = IndexOf(value);
  std::int64_t seen = 0;
  for (const Bucket& bucket : Buckets()) {
    if (bucket.index > last) break;
    seen += bucket.count;
  }
  return seen;
}

std::vector<Histogram::Bucket> Histogram::Buckets() const {
  std::vector<Bucket> buckets;
  for (std::size_t block = 0; block < blocks_.size(); ++block) {
    for (std::size_t i = 0; i < blocks_[block].size(); ++i) {
      if (blocks_[block][i] == 0) continue;
      const std::size_t index = block * kBlockBuckets + i;
      const Range range = RangeOf(index);
      buckets.push_back({index, Duration{range.lower}, Duration{range.width}, blocks_[block][i]});
    }
  }
  return buckets;
}

}  // namespace normd::load
