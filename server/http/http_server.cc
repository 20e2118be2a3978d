#include "server/http/http_server.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/printable.h"
#include "boost/asio/io_context.hpp"
#include "boost/asio/ip/tcp.hpp"
#include "boost/asio/ip/v6_only.hpp"
#include "boost/asio/steady_timer.hpp"
#include "server/http/http_connection.h"

namespace normd {
namespace {

namespace asio = boost::asio;
using tcp = boost::asio::ip::tcp;
using ErrorCode = boost::system::error_code;

// The pause when there is no descriptor for another connection.
constexpr auto kExhaustedPause = std::chrono::milliseconds(100);

// The peer, which has a share of the places: an IPv4 address, or an IPv6 network, because one host
// has many addresses in it.
std::string PeerOf(const tcp::endpoint& endpoint) {
  const asio::ip::address address = endpoint.address();
  if (address.is_v4()) return address.to_string();
  const asio::ip::address_v6 v6 = address.to_v6();
  if (v6.is_v4_mapped()) return asio::ip::make_address_v4(asio::ip::v4_mapped, v6).to_string();
  const auto bytes = v6.to_bytes();
  return std::string(bytes.begin(), bytes.begin() + 8);
}

class HttpServerImpl final : public HttpServer {
 public:
  HttpServerImpl(const HttpServerOptions& options, Handler handler)
      : options_(options), handler_(std::move(handler)) {}
  ~HttpServerImpl() override {
    context_.stop();
    if (thread_.joinable()) thread_.join();
    for (const auto& weak : connections_) {
      if (const auto connection = weak.lock()) connection->Drop();
    }
  }

  void Listen(const std::string& host, const std::string& port) {
    if (host == "0.0.0.0" || host == "::") {
      // A socket of IPv6 takes IPv4, too. Where IPv6 is off, IPv4 alone is left.
      try {
        ListenAt("::", port);
      } catch (const boost::system::system_error& error) {
        namespace errc = boost::system::errc;
        if (error.code() != errc::address_family_not_supported &&
            error.code() != errc::address_not_available) {
          throw;
        }
        ListenAt("0.0.0.0", port);
      }
    } else {
      ListenAt(host, port);
    }
    port_ = acceptor_.local_endpoint().port();
    Accept();
    thread_ = std::thread([this] { Run(); });
  }

  int port() const override { return port_; }
  HttpServerStats stats() const override {
    HttpServerStats stats{
        counters_.connections, counters_.timeouts, counters_.evictions, counters_.exhausted, {}};
    for (std::size_t i = 0; i < stats.responses.size(); ++i) {
      stats.responses[i] = counters_.responses[i];
    }
    return stats;
  }

 private:
  void ListenAt(const std::string& host, const std::string& port) {
    tcp::resolver resolver(context_);
    const tcp::endpoint endpoint =
        *resolver.resolve(host, port, tcp::resolver::passive | tcp::resolver::numeric_service)
             .begin();
    tcp::acceptor acceptor(context_);
    acceptor.open(endpoint.protocol());
    acceptor.set_option(tcp::acceptor::reuse_address(true));
    if (endpoint.address().is_v6() && endpoint.address().is_unspecified()) {
      acceptor.set_option(asio::ip::v6_only(false));
    }
    acceptor.bind(endpoint);
    acceptor.listen();
    acceptor_ = std::move(acceptor);
  }

  void Run() {
    while (!context_.stopped()) {
      try {
        context_.run();
      } catch (const std::exception&) {
        // No memory for one connection's operation: that connection is gone with it.
      }
    }
  }

  void Accept() {
    acceptor_.async_accept([this](ErrorCode error, tcp::socket socket) {
      if (!error) {
        try {
          Admit(std::move(socket));
        } catch (const std::exception&) {
          // No memory for this connection. The next one may find some.
        }
      } else if (IsExhausted(error)) {
        return AcceptLater();
      }
      Accept();
    });
  }

  static bool IsExhausted(ErrorCode error) {
    return error == asio::error::no_descriptors || error == asio::error::no_buffer_space ||
           error == asio::error::no_memory || error.value() == ENFILE;
  }

  // The listener stays readable while no descriptor is left, so an immediate retry would spin.
  // Dropping one of our connections makes room for the waiting one.
  void AcceptLater() {
    ++counters_.exhausted;
    const auto held = Held();
    if (const auto first = MakesRoom(held.facts, "", {0, 0})) Evict(*held.connections[*first]);
    pause_.expires_after(kExhaustedPause);
    pause_.async_wait([this](ErrorCode) { Accept(); });
  }

  void Admit(tcp::socket socket) {
    ErrorCode error;
    const tcp::endpoint endpoint = socket.remote_endpoint(error);
    if (error) return;  // The client has already left.
    const std::string peer = PeerOf(endpoint);
    const auto held = Held();
    if (const auto victim = MakesRoom(held.facts, peer, options_.connections)) {
      Evict(*held.connections[*victim]);
    }
    const std::shared_ptr<HttpConnection> connection =
        MakeHttpConnection(std::move(socket), peer, next_number_++, parts_);
    connection->make_room_for_body = [this](HttpConnection& one) { MakeRoomForBody(one); };
    connections_.push_back(connection);
    connection->Start();
  }

  struct Snapshot {
    std::vector<std::shared_ptr<HttpConnection>> connections;
    std::vector<HeldConnection> facts;
  };
  Snapshot Held() {
    Snapshot held;
    std::erase_if(connections_, [&held](const std::weak_ptr<HttpConnection>& weak) {
      std::shared_ptr<HttpConnection> connection = weak.lock();
      if (connection == nullptr) return true;
      held.facts.push_back(connection->held());
      held.connections.push_back(std::move(connection));
      return false;
    });
    return held;
  }

  void Evict(HttpConnection& connection) {
    ++counters_.evictions;
    connection.Drop();
    std::erase_if(connections_, [&connection](const std::weak_ptr<HttpConnection>& weak) {
      const auto other = weak.lock();
      return other == nullptr || other.get() == &connection;
    });
  }

  // Slow readers hold the bodies that they read. The peer with most of them loses first.
  void MakeRoomForBody(HttpConnection& newest) {
    while (true) {
      Snapshot others;
      std::set<const std::string*> bodies = {newest.body()};
      const Snapshot held = Held();
      for (const auto& connection : held.connections) {
        if (connection.get() == &newest || connection->body() == nullptr) continue;
        bodies.insert(connection->body());
        if (connection->body() == newest.body()) continue;
        others.facts.push_back(connection->held());
        others.connections.push_back(connection);
      }
      if (bodies.size() <= options_.max_bodies) return;
      Evict(*others.connections[*MakesRoom(others.facts, "", {0, 1})]);
    }
  }

  const HttpServerOptions options_;
  const Handler handler_;
  HttpCounters counters_;
  const HttpServerParts parts_{options_, handler_, counters_};
  asio::io_context context_{1};
  tcp::acceptor acceptor_{context_};
  asio::steady_timer pause_{context_};
  int port_ = 0;
  std::uint64_t next_number_ = 0;
  // weak: connections end by themselves. Used by the thread alone.
  std::vector<std::weak_ptr<HttpConnection>> connections_;
  std::thread thread_;  // Last: it uses the others.
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& address,
                                                              const HttpServerOptions& options,
                                                              Handler handler) {
  const std::size_t colon = address.rfind(':');
  absl::string_view host = absl::string_view(address).substr(0, colon);
  const absl::string_view port =
      colon == std::string::npos ? "" : absl::string_view(address).substr(colon + 1);
  const bool bracketed = absl::ConsumePrefix(&host, "[") && absl::ConsumeSuffix(&host, "]");
  int number = -1;
  if (host.empty() || (!bracketed && absl::StrContains(host, ':')) || port.empty() ||
      port.find_first_not_of("0123456789") != absl::string_view::npos ||
      !absl::SimpleAtoi(port, &number) || number > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", Printable(address), "\", wanted host:port, such as 127.0.0.1:8002"));
  }
  try {
    auto server = std::make_unique<HttpServerImpl>(options, std::move(handler));
    server->Listen(std::string(host), std::string(port));
    return std::unique_ptr<HttpServer>(std::move(server));
  } catch (const std::exception& e) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", Printable(address), ": ", Printable(e.what())));
  }
}

}  // namespace normd
