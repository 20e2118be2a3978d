// The HTTP front end's options.

#ifndef NORMD_SERVER_REST_REST_OPTIONS_H_
#define NORMD_SERVER_REST_REST_OPTIONS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/clock.h"
#include "server/http/http_tls.h"

namespace normd {

// Durations of 0: no limit.
struct RestOptions {
  std::string listen = "127.0.0.1:8000";  // See ListenAtAll.
  // What browsers' requests may come from, separated by commas, or "*"; empty: nothing.
  std::string allow_origin = {};
  int threads = 0;                   // 0: one for each core, up to 4.
  std::int64_t max_connections = 0;  // As ConnectionOptions has them.
  std::int64_t max_peer_connections = 0;
  std::size_t max_head_bytes = std::size_t{16} << 10;
  // The time for TLS, and then for each head.
  Duration handshake_timeout = std::chrono::seconds(10);
  // The time for a body, extended while it brings min_bytes_per_second.
  Duration message_timeout = std::chrono::seconds(30);
  std::int64_t min_bytes_per_second = 4096;
  // The time for a client to take a response, and a second for each MiB.
  Duration response_timeout = std::chrono::seconds(60);
  // Long bodies' memory that is lent and kept for others, each at most. See RequestBody.
  std::int64_t pooled_bytes = std::int64_t{64} << 20;
  Duration max_idle{0};
  Duration max_age{0};
  HttpTlsContext tls = nullptr;  // Null: no TLS.
};

}  // namespace normd

#endif  // NORMD_SERVER_REST_REST_OPTIONS_H_
