// Whether a client takes the responses that the kernel has for it.

#ifndef NORMD_SERVER_REST_DELIVERY_H_
#define NORMD_SERVER_REST_DELIVERY_H_

#include <cstdint>

#include "base/clock.h"

namespace normd {

// One connection's. A response has `timeout`, and a second for each MiB; 0: no limit.
class Delivery {
 public:
  explicit Delivery(Duration timeout) : timeout_(timeout) {}

  // The kernel has a response.
  void Begin() { may_be_untaken_ = true; }
  // Whether the client has left a response with the kernel for longer than it may, whatever it has
  // asked for since.
  bool IsLate(int socket, TimePoint now);
  // When the client is to have what the kernel has.
  TimePoint Due(int socket, TimePoint now) const;
  // The time for this many bytes; 0: no limit.
  Duration TimeFor(std::int64_t bytes) const;

 private:
  const Duration timeout_;
  // By then the client is to have what the kernel had at an earlier look: as many bytes are to be
  // acknowledged.
  TimePoint due_ = kNever;
  std::int64_t mark_ = 0;
  bool may_be_untaken_ = false;  // There has been a response since the kernel had nothing.
};

}  // namespace normd

#endif  // NORMD_SERVER_REST_DELIVERY_H_
