#include "server/metrics/histogram.h"

#include <algorithm>
#include <array>

namespace normd {
namespace {

// No steps other than 1, 1.75, 2.5, 3.5 and 5: the exposition prints 16 digits, and 7.5e-05 would
// read 7.499999999999999e-05.
constexpr std::array<std::int64_t, kDurationBoundCount> MakeDurationBounds() {
  std::array<std::int64_t, kDurationBoundCount> bounds{};
  std::size_t next = 0;
  for (std::int64_t decade = 10'000; decade < 10'000'000'000; decade *= 10) {
    for (const std::int64_t percent : {100, 175, 250, 350, 500}) {
      bounds[next++] = decade / 100 * percent;
    }
  }
  bounds[next] = 10'000'000'000;
  return bounds;
}

template <std::size_t kCount>
constexpr std::array<std::int64_t, kCount> MakePowers(std::int64_t first, std::int64_t base) {
  std::array<std::int64_t, kCount> bounds{};
  for (std::int64_t& bound : bounds) {
    bound = first;
    first *= base;
  }
  return bounds;
}

constexpr auto kDurationBounds = MakeDurationBounds();
constexpr auto kLoadBounds = MakePowers<6>(1'000'000, 10);
constexpr auto kBatchRequestsBounds = MakePowers<11>(1, 2);
constexpr auto kBatchBytesBounds = MakePowers<13>(256, 4);
static_assert(kBatchRequestsBounds.back() == 1024);
static_assert(kBatchBytesBounds.back() == std::int64_t{4} << 30);

}  // namespace

HistogramScale DurationScale() { return {kDurationBounds, 1e9}; }
HistogramScale LoadScale() { return {kLoadBounds, 1e9}; }
HistogramScale BatchRequestsScale() { return {kBatchRequestsBounds, 1}; }
HistogramScale BatchBytesScale() { return {kBatchBytesBounds, 1}; }

Histogram::Histogram(HistogramScale scale) : scale_(scale), cells_(scale.bounds.size() + 2) {}

void Histogram::Record(std::int64_t value) {
  value = std::max<std::int64_t>(value, 0);
  const auto bound = std::lower_bound(scale_.bounds.begin(), scale_.bounds.end(), value);
  cells_.Add(static_cast<std::size_t>(bound - scale_.bounds.begin()), 1);
  cells_.Add(scale_.bounds.size() + 1, value);
}

prometheus::ClientMetric::Histogram Histogram::Collect() const {
  prometheus::ClientMetric::Histogram out;
  std::uint64_t cumulative = 0;
  for (std::size_t i = 0; i < scale_.bounds.size(); ++i) {
    cumulative += static_cast<std::uint64_t>(cells_.Sum(i));
    // Division rounds once, so that 17500 ns reads exactly 1.75e-05.
    out.bucket.push_back(
        {cumulative, static_cast<double>(scale_.bounds[i]) / scale_.recorded_per_exposed});
  }
  out.sample_count = cumulative + static_cast<std::uint64_t>(cells_.Sum(scale_.bounds.size()));
  out.sample_sum =
      static_cast<double>(cells_.Sum(scale_.bounds.size() + 1)) / scale_.recorded_per_exposed;
  return out;
}

void Histogram::Count(absl::Span<std::int64_t> out) const {
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = cells_.Sum(i);
}

}  // namespace normd
