// Gives memory back to the system that ended connections have left in the heap.

#ifndef NORMD_SERVER_NET_HEAP_TRIM_H_
#define NORMD_SERVER_NET_HEAP_TRIM_H_

#include <cstdint>

#include "base/clock.h"

namespace normd {

// The owner of a connection keeps what it receives in many small pieces, which the heap would keep
// in turn. It looks soon after a connection's end, for who waits for the memory, and again until
// the slowest owner has let go. Seldom, because a look takes milliseconds of all who allocate. The
// C library keeps what is free at the top of each arena beside its first, up to 64 MiB. Not
// thread-safe.
class HeapTrim {
 public:
  // A connection has ended that had received so much.
  void OnEnd(std::int64_t received_bytes, TimePoint now);
  // Looks, if it is time, and says whether it was.
  bool Check(TimePoint now);
  // Whether there will be a look.
  bool waits() const { return next_ != kNever; }

 private:
  TimePoint next_ = kNever;
  TimePoint until_ = TimePoint::min();
  TimePoint not_before_ = TimePoint::min();
};

}  // namespace normd

#endif  // NORMD_SERVER_NET_HEAP_TRIM_H_
