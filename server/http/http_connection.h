// One connection of the HTTP server, which is for one request.

#ifndef NORMD_SERVER_HTTP_HTTP_CONNECTION_H_
#define NORMD_SERVER_HTTP_HTTP_CONNECTION_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "boost/asio/ip/tcp.hpp"
#include "server/http/connection_limits.h"
#include "server/http/http_message.h"
#include "server/http/http_options.h"

namespace normd {

struct HttpCounters {
  std::atomic<std::int64_t> connections{0};
  std::atomic<std::int64_t> timeouts{0};
  std::atomic<std::int64_t> evictions{0};
  std::atomic<std::int64_t> exhausted{0};
  std::array<std::atomic<std::int64_t>, HttpServerStats::kStatuses.size() + 1> responses{};

  void CountResponse(int status) {
    const auto& known = HttpServerStats::kStatuses;
    const auto found = std::find(known.begin(), known.end(), status);
    ++responses[static_cast<std::size_t>(found - known.begin())];
  }
};

// The server's view of a connection, on its thread.
class HttpConnection {
 public:
  virtual ~HttpConnection() = default;

  virtual const HeldConnection& held() const = 0;
  virtual const std::string* body() const = 0;
  virtual void Start() = 0;
  virtual void Drop() = 0;

  // Asks for room first, which may drop others.
  std::function<void(HttpConnection&)> make_room_for_body;
};

// The parts of the server that all connections use; they outlive the connections.
struct HttpServerParts {
  const HttpServerOptions& options;
  const HttpHandler& handler;
  HttpCounters& counters;
};

// Not started. With TLS where the options have it.
std::shared_ptr<HttpConnection> MakeHttpConnection(boost::asio::ip::tcp::socket socket,
                                                   const std::string& peer, std::uint64_t number,
                                                   const HttpServerParts& server);

}  // namespace normd

#endif  // NORMD_SERVER_HTTP_HTTP_CONNECTION_H_
