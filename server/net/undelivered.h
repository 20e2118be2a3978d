// How much of what a connection has received has not reached the service: what gRPC holds of
// messages that are half sent, or that nobody reads. Pure: time and counts are given.

#ifndef NORMD_SERVER_NET_UNDELIVERED_H_
#define NORMD_SERVER_NET_UNDELIVERED_H_

#include <algorithm>
#include <cstdint>

#include "base/clock.h"

namespace normd {

// Counts since the connection began.
struct TrafficSample {
  TimePoint at;
  std::int64_t received_bytes = 0;   // By TCP.
  std::int64_t delivered_bytes = 0;  // In messages, by gRPC to the service.
  std::int64_t delivered_messages = 0;
  // Streams that the service has open. What it does not read of them is its own doing, and their
  // time-out ends those whose client is slow.
  std::int64_t open_streams = 0;
};

// What part of a connection's bytes may be heads of frames, of which each is rarely under 1 KiB.
inline constexpr std::int64_t kFramesShare = 64;
// The same with TLS, whose records take 22 bytes each and may be of half a KiB.
inline constexpr std::int64_t kTlsFramesShare = 22;

struct TrafficLimits {
  std::int64_t frames_share = kFramesShare;
  // What one connection, and all together, may have undelivered.
  std::int64_t connection_bytes = 0;
  std::int64_t process_bytes = 0;  // 0: no limit.
  // A connection that has had a part of a message undelivered for so long, without a stream, and
  // received fewer bytes per second than this, is given up, after at most twice the time. 0: never.
  Duration message_timeout{0};
  std::int64_t min_bytes_per_second = 0;
};

// Why a connection is ended.
enum class TrafficVerdict { kFine, kOversize, kStalled };

// An estimate that never exceeds what is undelivered by more than kNoticeableBytes for a client
// that sends what gRPC's clients send and cancels nothing: frames' heads, metadata, window updates
// and pings are allowed for generously, so that an honest connection's estimate falls back to 0
// with its last message. What gRPC has thrown away of cancelled calls counts until the owner calls
// Cap. What is allowed to a connection that delivers nothing ends at kAllowanceBytes, so a
// message that drips in below every rate is noticed too. Not thread-safe.
class Undelivered {
 public:
  static constexpr std::int64_t kNoticeableBytes = std::int64_t{64} << 10;
  // Beyond the pings of an idle connection. Each message that is delivered gives some of it back.
  static constexpr std::int64_t kAllowanceBytes = std::int64_t{1} << 20;

  explicit Undelivered(TimePoint begin) : last_{begin}, window_{begin}, second_{begin} {}

  TrafficVerdict Add(const TrafficSample& sample, const TrafficLimits& limits);

  // No more than `most_bytes` are undelivered.
  void Cap(std::int64_t most_bytes) { bytes_ = std::min(bytes_, most_bytes); }

  std::int64_t bytes() const { return bytes_; }
  // Those that have been there for a second: what a fast upload sends has not.
  std::int64_t old_bytes() const;

 private:
  std::int64_t Allow(std::int64_t received, Duration passed, const TrafficLimits& limits);
  bool Stalled(const TrafficSample& sample, const TrafficLimits& limits);
  void AgeFloor(TimePoint now);

  TrafficSample last_;
  std::int64_t bytes_ = 0;
  std::int64_t allowance_ = kAllowanceBytes;  // What is left of it.
  // Where the time began in which something was undelivered all along, or the last that was
  // judged by its rate.
  TrafficSample window_;
  // The least of `bytes_` in this second and in the one before.
  TimePoint second_;
  std::int64_t floor_ = 0;
  std::int64_t last_floor_ = 0;
};

}  // namespace normd

#endif  // NORMD_SERVER_NET_UNDELIVERED_H_
