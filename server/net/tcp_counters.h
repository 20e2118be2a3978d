// The kernel's counters of a TCP connection.

#ifndef NORMD_SERVER_NET_TCP_COUNTERS_H_
#define NORMD_SERVER_NET_TCP_COUNTERS_H_

#include <cstdint>

namespace normd {

struct TcpCounters {
  std::int64_t received_bytes = 0;  // In order, read or not.
  std::int64_t written_bytes = 0;   // By this side, sent or not.
  // Written bytes that have arrived; the connection's beginning and end count as one each.
  std::int64_t acknowledged_bytes = 0;
  bool closed = false;  // By this side.
};

// Zeros for other sockets.
TcpCounters ReadTcpCounters(int socket);

}  // namespace normd

#endif  // NORMD_SERVER_NET_TCP_COUNTERS_H_
