// A small HTTP/1.1 server for the port that operators use.

#ifndef NORMD_SERVER_HTTP_HTTP_SERVER_H_
#define NORMD_SERVER_HTTP_HTTP_SERVER_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/http/http_message.h"
#include "server/http/http_options.h"

namespace normd {

// One thread serves all connections, so one that is slow costs a place and no more. A connection is
// for one request: beside what the handler takes, its life is bounded by twice the timeout,
// whatever its client does. Thread-safe.
class HttpServer {
 public:
  using Handler = HttpHandler;
  using Respond = std::function<void(HttpResponse)>;

  // Listens on `address`, "127.0.0.1:8002" or "[::1]:0", until destroyed; 0.0.0.0 and [::] stand
  // for every address of both families. InvalidArgument when it is no such address, Unavailable
  // when it cannot be bound; both show it.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const std::string& address,
                                                           const HttpServerOptions& options,
                                                           Handler handler);
  virtual ~HttpServer() = default;

  virtual int port() const = 0;  // The port in use, also when 0 was asked for.
  virtual HttpServerStats stats() const = 0;
};

}  // namespace normd

#endif  // NORMD_SERVER_HTTP_HTTP_SERVER_H_
