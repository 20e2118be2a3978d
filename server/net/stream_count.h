// What a connection's owner says of its streams, and when to ask again.

#ifndef NORMD_SERVER_NET_STREAM_COUNT_H_
#define NORMD_SERVER_NET_STREAM_COUNT_H_

#include <chrono>
#include <cstdint>
#include <limits>

#include "base/clock.h"

namespace normd {

// A connection's streams by its owner's accounts.
struct StreamCounts {
  std::int64_t open = 0;
  std::int64_t ended = 0;  // Ever.
};

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

// What the owner holds belongs to streams that wait for their messages; where none does, it has
// thrown away what came of calls that were cancelled.
class WaitingStreams {
 public:
  static constexpr Duration kTimeBetween = std::chrono::milliseconds(100);

  bool IsDue(TimePoint now) const { return now >= again_; }
  // The most that the owner may hold, of a connection that has received `received_bytes` by now.
  // `calls_inside` of its streams, counted before the owner was asked, had brought their message.
  std::int64_t MostHeld(std::int64_t calls_inside, const StreamCounts& streams,
                        std::int64_t received_bytes, TimePoint now) {
    // A handler learns after the owner that its call is over: then one more may be waiting.
    const bool exact = calls_inside == 0 || streams.ended == ended_;
    // Streams may have begun with what came since, unknown to the owner as yet.
    const std::int64_t since = received_bytes - received_bytes_;
    ended_ = streams.ended;
    received_bytes_ = received_bytes;
    again_ = now + kTimeBetween;
    return exact && streams.open <= calls_inside ? since : std::numeric_limits<std::int64_t>::max();
  }

 private:
  std::int64_t ended_ = -1;
  std::int64_t received_bytes_ = 0;
  TimePoint again_ = TimePoint::min();
};

}  // namespace normd

#endif  // NORMD_SERVER_NET_STREAM_COUNT_H_
