// A small HTTP/1.1 server for the port that operators use.

#ifndef NORMD_SERVER_HTTP_HTTP_SERVER_H_
#define NORMD_SERVER_HTTP_HTTP_SERVER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "server/http/connection_limits.h"
#include "server/http/http_message.h"
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

// One thread serves all connections, so one that is slow costs a place and no more. A connection is
// for one request: beside what the handler takes, its life is bounded by twice the timeout,
// whatever its client does. Thread-safe.
class HttpServer {
 public:
  using Respond = std::function<void(HttpResponse)>;
  // Called on the server's thread, which it must not hold up: what takes time calls `respond`
  // later, once, from any thread, and no more once the server is being destroyed. Must not throw.
  using Handler = std::function<void(const HttpRequest&, Respond respond)>;

  // Listens on `address`, "127.0.0.1:8002" or "[::1]:0", until destroyed. InvalidArgument when it
  // is no such address, Unavailable when it cannot be bound; both show it.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const std::string& address,
                                                           const HttpServerOptions& options,
                                                           Handler handler);
  virtual ~HttpServer() = default;

  virtual int port() const = 0;  // The port in use, also when 0 was asked for.
  virtual HttpServerStats stats() const = 0;
};

}  // namespace normd

#endif  // NORMD_SERVER_HTTP_HTTP_SERVER_H_
