#include "client/load/lane_times.h"

#include <algorithm>
#include <bit>

namespace normd::load {
namespace {

constexpr std::int64_t kExactSizes = 64;
constexpr std::int64_t kLargestSize = std::int64_t{1} << 32;

std::int64_t SizeClass(std::int64_t requests) {
  if (requests <= kExactSizes) return requests;
  const auto size = static_cast<std::uint64_t>(std::min(requests, kLargestSize));
  return static_cast<std::int64_t>(std::bit_ceil(size));
}

}  // namespace

void LaneTimes::Record(const Outcome& outcome, Duration service_time) {
  if (outcome.batch_requests <= 0) return;
  // In the order of kServerStageNames: decode and queue are not the lane's.
  const Duration queue = outcome.stages[1];
  Duration lane{0};
  for (std::size_t i = 2; i < kServerStages; ++i) lane += outcome.stages[i];
  by_batch_[SizeClass(outcome.batch_requests)].Record(lane);
  beside_.Record(service_time - queue - lane);
}

void LaneTimes::Merge(const LaneTimes& other) {
  for (const auto& [requests, times] : other.by_batch_) by_batch_[requests].Merge(times);
  beside_.Merge(other.beside_);
}

void LaneTimes::Add(std::int64_t batch_requests, const Histogram& lane_time) {
  by_batch_[SizeClass(batch_requests)].Merge(lane_time);
}

}  // namespace normd::load
