#include "server/net/tcp_counters.h"

// The kernel's header has counters that the C library's lacks; the two cannot be included together.
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

namespace normd {

TcpCounters ReadTcpCounters(int socket) {
  tcp_info info = {};
  socklen_t size = sizeof(info);
  if (getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return {};
  TcpCounters counters;
  counters.received_bytes = static_cast<std::int64_t>(info.tcpi_bytes_received);
  counters.written_bytes =
      static_cast<std::int64_t>(info.tcpi_bytes_sent) + std::int64_t{info.tcpi_notsent_bytes};
  counters.acknowledged_bytes = static_cast<std::int64_t>(info.tcpi_bytes_acked);
  // TCP_ESTABLISHED and TCP_CLOSE_WAIT, which only the C library's header names. In all later
  // states this side has closed.
  constexpr int kEstablished = 1;
  constexpr int kCloseWait = 8;
  counters.closed = info.tcpi_state != kEstablished && info.tcpi_state != kCloseWait;
  return counters;
}

}  // namespace normd
