// The received bytes of a connection that have not reached the service: gRPC holds them for
// messages that are half sent or unread. Pure: time and counts are given.

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
  std::int64_t delivered_bytes = 0;  // In messages from gRPC to the service.
  std::int64_t delivered_messages = 0;
  // The service's open streams. Unread data of these is the service's own doing, and their time-out
  // ends those with slow clients.
  std::int64_t open_streams = 0;
};

// The part of a connection's bytes that may be frame heads; a frame is rarely under 1 KiB.
inline constexpr std::int64_t kFramesShare = 64;
// The same with TLS, whose records add 22 bytes each and may have half a KiB.
inline constexpr std::int64_t kTlsFramesShare = 22;

struct TrafficLimits {
  std::int64_t frames_share = kFramesShare;
  // The undelivered bytes that one connection, and all together, may have.
  std::int64_t connection_bytes = 0;
  std::int64_t process_bytes = 0;  // 0: no limit.
  // A connection is ended, after at most twice this time, if it has had a part of a message
  // undelivered for this long, without a stream, and has received fewer bytes per second than the
  // rate below. 0: never.
  Duration message_timeout{0};
  std::int64_t min_bytes_per_second = 0;
};

// The reason for ending a connection.
enum class TrafficVerdict { kFine, kOversize, kStalled };

// An estimate of the undelivered bytes. It never exceeds them by more than kNoticeableBytes for a
// client that sends what gRPC's clients send and cancels nothing. It allows generously for frame
// heads, metadata, window updates and pings, so an honest connection's estimate returns to 0 with
// its last message. Discarded bytes of cancelled calls count until the owner calls Cap. The
// allowance of a connection that delivers nothing ends at kAllowanceBytes, so a message that drips
// in below every rate is noticed too. Not thread-safe.
class Undelivered {
 public:
  static constexpr std::int64_t kNoticeableBytes = std::int64_t{64} << 10;
  // Beyond an idle connection's pings. Each delivered message restores some of it.
  static constexpr std::int64_t kAllowanceBytes = std::int64_t{1} << 20;

  explicit Undelivered(TimePoint begin) : last_{begin}, window_{begin}, second_{begin} {}

  TrafficVerdict Add(const TrafficSample& sample, const TrafficLimits& limits);

  // At most `most_bytes` are undelivered.
  void Cap(std::int64_t most_bytes) { bytes_ = std::min(bytes_, most_bytes); }

  std::int64_t bytes() const { return bytes_; }
  // Bytes that have been undelivered for a second; a fast upload has none.
  std::int64_t old_bytes() const;
  // For comparisons: bytes that are one second old count twice.
  std::int64_t weight() const { return bytes_ + old_bytes(); }

 private:
  std::int64_t Allow(std::int64_t received, Duration passed, const TrafficLimits& limits);
  bool Stalled(const TrafficSample& sample, const TrafficLimits& limits);
  void AgeFloor(TimePoint now);

  TrafficSample last_;
  std::int64_t bytes_ = 0;
  std::int64_t allowance_ = kAllowanceBytes;  // The rest of it.
  // The beginning of the time in which something was always undelivered, or of the last part judged
  // by its rate.
  TrafficSample window_;
  // The least of `bytes_` in this second and in the previous one.
  TimePoint second_;
  std::int64_t floor_ = 0;
  std::int64_t last_floor_ = 0;
};

}  // namespace normd

#endif  // NORMD_SERVER_NET_UNDELIVERED_H_
