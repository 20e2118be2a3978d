#include "server/net/undelivered.h"

#include <chrono>
#include <cmath>

namespace normd {
namespace {

// The allowance for 8 KiB of a call's metadata (DeliveredCounts has the rest), its frames' heads
// and window updates.
constexpr std::int64_t kMessageOverhead = 9 << 10;
// Pings and acknowledgements, during the whole connection.
constexpr double kPingsPerSecond = 64;
// Window updates, and calls that gRPC answers itself (reflection, unknown methods).
constexpr std::int64_t kOverheadPerSecond = 1 << 10;
// The part of the allowance that a delivered message restores.
constexpr std::int64_t kAllowancePerMessage = 16 << 10;

double Seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

// Less than the least rate is not noticed at first, so a connection with little traffic is not
// taken for a slow one.
std::int64_t Undelivered::Allow(std::int64_t received, Duration passed,
                                const TrafficLimits& limits) {
  const double seconds = std::min(Seconds(passed), 1.0);
  const auto rate = static_cast<double>(limits.min_bytes_per_second + kOverheadPerSecond);
  const std::int64_t free = received / limits.frames_share +
                            static_cast<std::int64_t>(std::ceil(kPingsPerSecond * seconds));
  const std::int64_t wanted = std::clamp<std::int64_t>(
      received - free, 0, static_cast<std::int64_t>(std::min(rate * seconds, 1e9)));
  const std::int64_t used = std::min(wanted, allowance_);
  allowance_ -= used;
  return free + used;
}

TrafficVerdict Undelivered::Add(const TrafficSample& sample, const TrafficLimits& limits) {
  const std::int64_t received = sample.received_bytes - last_.received_bytes;
  const std::int64_t messages = sample.delivered_messages - last_.delivered_messages;
  const std::int64_t allowed = Allow(received, sample.at - last_.at, limits);
  const std::int64_t delivered =
      sample.delivered_bytes - last_.delivered_bytes + kMessageOverhead * messages;
  allowance_ = std::min(allowance_ + kAllowancePerMessage * messages, kAllowanceBytes);
  // An unused allowance is not saved for later.
  bytes_ =
      std::max<std::int64_t>(bytes_ + std::max<std::int64_t>(received - allowed, 0) - delivered, 0);
  last_ = sample;
  AgeFloor(sample.at);
  if (bytes_ > limits.connection_bytes) return TrafficVerdict::kOversize;
  return Stalled(sample, limits) ? TrafficVerdict::kStalled : TrafficVerdict::kFine;
}

bool Undelivered::Stalled(const TrafficSample& sample, const TrafficLimits& limits) {
  if (bytes_ <= kNoticeableBytes || sample.open_streams > 0 ||
      limits.message_timeout == Duration(0)) {
    window_ = sample;
    return false;
  }
  const Duration passed = sample.at - window_.at;
  if (passed < limits.message_timeout) return false;
  const double wanted = static_cast<double>(limits.min_bytes_per_second) * Seconds(passed);
  const bool slow = static_cast<double>(sample.received_bytes - window_.received_bytes) < wanted;
  window_ = sample;
  return slow;
}

void Undelivered::AgeFloor(TimePoint now) {
  constexpr Duration kSecond = std::chrono::seconds(1);
  if (now - second_ >= kSecond) {
    last_floor_ = floor_;
    floor_ = bytes_;
    second_ = now;
  } else {
    floor_ = std::min(floor_, bytes_);
  }
}

std::int64_t Undelivered::old_bytes() const { return std::min({bytes_, floor_, last_floor_}); }

}  // namespace normd
