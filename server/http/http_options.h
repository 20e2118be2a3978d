// What the HTTP server is told, and what it tells of itself.

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
  // In which a request has to arrive as a whole, after a handshake of TLS, and then its response to
  // be taken as a whole.
  Duration timeout = std::chrono::seconds(10);
  HttpConnectionLimits connections;
  std::size_t max_head_bytes = 8192;
  // Different bodies that slow readers may hold in memory at once.
  std::size_t max_bodies = 4;
  HttpTlsContext tls = nullptr;  // Null: no TLS.
};

struct HttpServerStats {
  std::int64_t connections = 0;  // Now.
  std::int64_t timeouts = 0;     // Connections that were dropped for being too slow,
  std::int64_t evictions = 0;    // to make room for another,
  std::int64_t exhausted = 0;    // and times that no descriptor was left to accept one.
  // Responses by status: those that the server itself gives, and 200.
  static constexpr std::array<int, 9> kStatuses = {200, 400, 401, 403, 404, 405, 429, 431, 503};
  std::array<std::int64_t, kStatuses.size()> responses{};
};

}  // namespace normd

#endif  // NORMD_SERVER_HTTP_HTTP_OPTIONS_H_
