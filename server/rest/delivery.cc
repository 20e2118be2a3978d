#include "server/rest/delivery.h"

#include <algorithm>
#include <chrono>

#include "server/http/connection_end.h"
#include "server/net/tcp_counters.h"

namespace normd {

Duration Delivery::TimeFor(std::int64_t bytes) const {
  return timeout_ > Duration(0) ? timeout_ + std::chrono::seconds(bytes >> 20) : Duration(0);
}

bool Delivery::IsLate(int socket, TimePoint now) {
  if (!may_be_untaken_ || timeout_ <= Duration(0)) return false;
  // In this order: what is acknowledged in between is not asked for again.
  const std::int64_t acknowledged = ReadTcpCounters(socket).acknowledged_bytes;
  const std::int64_t left = UndeliveredBytes(socket);
  if (left == 0 || acknowledged >= mark_) due_ = kNever;
  may_be_untaken_ = left > 0;
  if (left > 0 && due_ == kNever) {
    mark_ = acknowledged + left;
    due_ = now + TimeFor(left);
  }
  return now >= due_;
}

TimePoint Delivery::Due(int socket, TimePoint now) const {
  if (timeout_ <= Duration(0)) return kNever;
  return std::min(due_, now + TimeFor(UndeliveredBytes(socket)));
}

}  // namespace normd
