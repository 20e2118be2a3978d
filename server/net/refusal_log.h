// Log lines about refused connections, of which there may be many.

#ifndef NORMD_SERVER_NET_REFUSAL_LOG_H_
#define NORMD_SERVER_NET_REFUSAL_LOG_H_

#include <cstdint>
#include <string>

#include "base/clock.h"

namespace normd {

// For one thread.
class RefusalLog {
 public:
  // Counts a refusal; at most every ten seconds, logs the count and the last one. `peer`: gRPC's
  // name of the client, or empty.
  void Record(const std::string& peer, const char* why, TimePoint now);

 private:
  std::int64_t refused_ = 0;  // Since the last line.
  TimePoint next_line_;
};

}  // namespace normd

#endif  // NORMD_SERVER_NET_REFUSAL_LOG_H_
