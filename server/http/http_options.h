// The HTTP server's options and statistics.

#ifndef NORMD_SERVER_HTTP_HTTP_OPTIONS_H_
#define NORMD_SERVER_HTTP_HTTP_OPTIONS_H_

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"
#include "server/http/connection_limits.h"
#include "server/http/http_tls.h"

namespace normd {

struct HttpServerOptions {
  // The time for a whole request to arrive, after a TLS handshake, and then for its whole response
  // to be taken.
  Duration timeout = std::chrono::seconds(10);
  HttpConnectionLimits connections;
  std::size_t max_head_bytes = 8192;
  // Different bodies that slow readers may hold in memory at once.
  std::size_t max_bodies = 4;
  HttpTlsContext tls = nullptr;  // Null: no TLS.
};

struct HttpServerStats {
  std::int64_t connections = 0;  // Now.
  std::int64_t timeouts = 0;     // Connections dropped for being too slow.
  std::int64_t evictions = 0;    // Connections dropped to make room for another.
  std::int64_t exhausted = 0;    // Times that no descriptor was left to accept one.
  // Responses by status, the last count for all that are not listed.
  static constexpr std::array<int, 9> kStatuses = {200, 400, 401, 403, 404, 405, 429, 431, 503};
  std::array<std::int64_t, kStatuses.size() + 1> responses{};
};

}  // namespace normd

#endif  // NORMD_SERVER_HTTP_HTTP_OPTIONS_H_
