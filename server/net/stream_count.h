// The number of a connection's streams, from its owner, and when to ask for it again.

#ifndef NORMD_SERVER_NET_STREAM_COUNT_H_
#define NORMD_SERVER_NET_STREAM_COUNT_H_

#include <chrono>
#include <cstdint>
#include <limits>

#include "base/clock.h"

namespace normd {

// A connection's streams according to its owner.
struct StreamCounts {
  std::int64_t open = 0;
  std::int64_t ended = 0;  // Ever.
};

// Asking is expensive, so it waits for enough time, and for enough bytes to have begun many
// streams.
class StreamCount {
 public:
  // The headers of a thousand streams.
  static constexpr std::int64_t kBytesBetween = std::int64_t{16} << 10;
  static constexpr Duration kTimeBetween = std::chrono::milliseconds(100);

  // `received_bytes`: of the connection, in all.
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

// The bytes that the owner holds belong to streams that wait for their messages; if there are none,
// it has discarded those of cancelled calls.
class WaitingStreams {
 public:
  static constexpr Duration kTimeBetween = std::chrono::milliseconds(100);

  bool IsDue(TimePoint now) const { return now >= again_; }
  // The most that the owner may hold of a connection that has received `received_bytes` so far.
  // `calls_inside` of its streams, counted before the owner was asked, already had their message.
  std::int64_t MostHeld(std::int64_t calls_inside, const StreamCounts& streams,
                        std::int64_t received_bytes, TimePoint now) {
    // A handler learns after the owner that its call has ended: one more may then be waiting.
    const bool exact = calls_inside == 0 || streams.ended == ended_;
    // Bytes since then may have begun streams that the owner does not know yet.
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
