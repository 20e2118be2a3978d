// How many streams a connection has by its owner's last word, and when to ask again.

#ifndef NORMD_SERVER_NET_STREAM_COUNT_H_
#define NORMD_SERVER_NET_STREAM_COUNT_H_

#include <chrono>
#include <cstdint>

#include "base/clock.h"

namespace normd {

// Asking costs, so it waits for time and for bytes enough to have begun many streams.
class StreamCount {
 public:
  // The headers of a thousand streams.
  static constexpr std::int64_t kBytesBetween = std::int64_t{16} << 10;
  static constexpr Duration kTimeBetween = std::chrono::milliseconds(100);

  // `received_bytes`: of the connection, ever.
  bool IsDue(std::int64_t received_bytes, TimePoint now) const {
    return received_bytes - counted_bytes_ >= kBytesBetween && now >= again_;
  }
  void Set(std::int64_t count, std::int64_t received_bytes, TimePoint now) {
    count_ = count;
    counted_bytes_ = received_bytes;
    again_ = now + kTimeBetween;
  }
  std::int64_t count() const { return count_; }

 private:
  std::int64_t count_ = 0;
  std::int64_t counted_bytes_ = 0;
  TimePoint again_ = TimePoint::min();
};

}  // namespace normd

#endif  // NORMD_SERVER_NET_STREAM_COUNT_H_
