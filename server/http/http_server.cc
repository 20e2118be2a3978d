#include "server/http/http_server.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <map>
#include <optional>
#include <set>
#include <thread>
#include <type_traits>
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
#include "boost/asio/post.hpp"
#include "boost/asio/ssl/context.hpp"
#include "boost/asio/steady_timer.hpp"
#include "boost/beast/core/flat_buffer.hpp"
#include "boost/beast/core/tcp_stream.hpp"
#include "boost/beast/http.hpp"
#include "boost/beast/ssl/ssl_stream.hpp"

namespace normd {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using tcp = boost::asio::ip::tcp;
using ErrorCode = boost::system::error_code;
using Body = http::span_body<const char>;

// How long to wait when there is no descriptor for another connection.
constexpr auto kExhaustedPause = std::chrono::milliseconds(100);
// Between two looks at what a client that has ended its side has acknowledged.
constexpr auto kDeliveryCheck = std::chrono::milliseconds(5);

TimePoint Now() { return std::chrono::steady_clock::now(); }

// Who has a share of the places: an IPv4 address, or an IPv6 network, of which one host has many
// addresses.
std::string PeerOf(const tcp::endpoint& endpoint) {
  const asio::ip::address address = endpoint.address();
  if (address.is_v4()) return address.to_string();
  const asio::ip::address_v6 v6 = address.to_v6();
  if (v6.is_v4_mapped()) return asio::ip::make_address_v4(asio::ip::v4_mapped, v6).to_string();
  const auto bytes = v6.to_bytes();
  return std::string(bytes.begin(), bytes.begin() + 8);
}

std::string RemoteAddress(const tcp::socket& socket) {
  ErrorCode error;
  const tcp::endpoint endpoint = socket.remote_endpoint(error);
  if (error) return "";
  const std::string host = endpoint.address().to_string();
  return endpoint.address().is_v6() ? absl::StrCat("[", host, "]:", endpoint.port())
                                    : absl::StrCat(host, ":", endpoint.port());
}

std::optional<std::string> Authorization(const http::fields& fields) {
  const auto [first, last] = fields.equal_range(http::field::authorization);
  if (first == last) return std::nullopt;
  if (std::next(first) != last) return "";
  return std::string(first->value().data(), first->value().size());
}

struct Counters {
  std::atomic<std::int64_t> connections{0};
  std::atomic<std::int64_t> timeouts{0};
  std::atomic<std::int64_t> evictions{0};
  std::atomic<std::int64_t> exhausted{0};
  std::array<std::atomic<std::int64_t>, HttpServerStats::kStatuses.size()> responses{};

  void CountResponse(int status) {
    for (std::size_t i = 0; i < responses.size(); ++i) {
      // Relaxed, as the others: a count that orders nothing.
      if (HttpServerStats::kStatuses[i] == status) ++responses[i];
    }
  }
};

// What the server knows of a connection, on its thread.
class Connection {
 public:
  virtual ~Connection() = default;

  virtual const HeldConnection& held() const = 0;
  virtual const std::string* body() const = 0;
  virtual void Start() = 0;
  virtual void Drop() = 0;

  // Asks for room first, which may drop others.
  std::function<void(Connection&)> make_room_for_body;
};

// What all connections have of the server, which outlives them.
struct ServerParts {
  const HttpServerOptions& options;
  const HttpServer::Handler& handler;
  Counters& counters;
};

using PlainStream = beast::tcp_stream;
using TlsStream = beast::ssl_stream<beast::tcp_stream>;

// One request and its response, on the server's thread. shared: the operation under way holds it,
// or it holds itself while the handler is at work.
template <typename Stream>
class ConnectionOver final : public Connection,
                             public std::enable_shared_from_this<ConnectionOver<Stream>> {
 public:
  ConnectionOver(Stream stream, std::string peer, std::uint64_t number, const ServerParts& server)
      : stream_(std::move(stream)),
        held_{std::move(peer), ConnectionPhase::kReading, number},
        options_(server.options),
        handler_(server.handler),
        counters_(server.counters),
        buffer_(options_.max_head_bytes + kReadBytes) {
    ++counters_.connections;
  }
  ~ConnectionOver() override { --counters_.connections; }
  ConnectionOver(const ConnectionOver&) = delete;
  ConnectionOver& operator=(const ConnectionOver&) = delete;

  const HeldConnection& held() const override { return held_; }
  const std::string* body() const override { return response_.body.get(); }

  void Start() override {
    // Whenever this is closed early, what its client has not taken is thrown away: the kernel would
    // else keep it for minutes.
    ErrorCode ignored;
    tcp_stream().socket().set_option(tcp::socket::linger(true, 0), ignored);
    parser_.header_limit(static_cast<std::uint32_t>(options_.max_head_bytes));
    // One deadline for the whole head: bytes that trickle in do not move it.
    tcp_stream().expires_after(options_.timeout);
    if constexpr (kTls) {
      stream_.async_handshake(asio::ssl::stream_base::server, [self = Self()](ErrorCode error) {
        if (self->dropped_) return;
        if (error == beast::error::timeout) return self->CountTimeout();
        if (!error) self->ReadRequest();
      });
    } else {
      ReadRequest();
    }
  }

  void Drop() override {
    held_.phase = ConnectionPhase::kEnding;
    dropped_ = true;
    tcp_stream().close();
    response_.body.reset();
    const auto last = std::move(at_handler_);
  }

 private:
  static constexpr bool kTls = std::is_same_v<Stream, TlsStream>;
  static constexpr std::size_t kReadBytes = 4096;

  std::shared_ptr<ConnectionOver> Self() { return this->shared_from_this(); }
  beast::tcp_stream& tcp_stream() { return beast::get_lowest_layer(stream_); }

  CertificateNames ClientCertificate() {
    if constexpr (kTls) return VerifiedNamesOf(stream_.native_handle());
    return {};
  }

  void ReadRequest() {
    http::async_read_header(
        stream_, buffer_, parser_,
        [self = Self()](ErrorCode error, std::size_t) { self->HaveRequest(error); });
  }

  void HaveRequest(ErrorCode error) {
    if (dropped_) return;
    if (error == http::error::header_limit || error == http::error::buffer_overflow) {
      return Send({431, "text/plain; charset=utf-8", false, nullptr});
    }
    if (error == beast::error::timeout) return CountTimeout();
    if (error.category() == http::make_error_code(http::error::bad_method).category() &&
        error != http::error::end_of_stream && error != http::error::partial_message) {
      return Send({400, "text/plain; charset=utf-8", false, nullptr});
    }
    if (error) return;
    const auto& request = parser_.get();
    head_only_ = request.method() == http::verb::head;
    if (!head_only_ && request.method() != http::verb::get) {
      return Send({405, "text/plain; charset=utf-8", false, nullptr});
    }
    held_.phase = ConnectionPhase::kResponding;
    tcp_stream().expires_never();  // The handler may take its time.
    at_handler_ = Self();
    const std::string target(request.target().data(), request.target().size());
    const auto encoding = request[http::field::accept_encoding];
    handler_(
        {target.substr(0, target.find('?')),
         absl::StrContains(absl::string_view(encoding.data(), encoding.size()), "gzip"),
         RemoteAddress(tcp_stream().socket()), Authorization(request), ClientCertificate()},
        // weak: a connection that was dropped meanwhile is gone.
        [weak = this->weak_from_this(), executor = stream_.get_executor()](HttpResponse response) {
          asio::post(executor, [weak, response = std::move(response)]() mutable {
            if (const auto self = weak.lock()) self->Send(std::move(response));
          });
        });
  }

  void Send(HttpResponse response) {
    // The callers hold a reference of their own.
    at_handler_.reset();
    if (dropped_) return;
    held_.phase = ConnectionPhase::kResponding;
    response_ = std::move(response);
    const auto status = static_cast<http::status>(response_.status);
    if (response_.body == nullptr) {
      const auto reason = http::obsolete_reason(status);
      response_.body =
          std::make_shared<std::string>(std::string(reason.data(), reason.size()) + "\n");
    } else if (make_room_for_body) {
      make_room_for_body(*this);
    }
    counters_.CountResponse(response_.status);
    message_.emplace();
    message_->result(status);
    message_->set(http::field::content_type, response_.content_type);
    message_->set(http::field::connection, "close");
    if (response_.gzip) message_->set(http::field::content_encoding, "gzip");
    if (response_.status == 401) message_->set(http::field::www_authenticate, "Bearer");
    if (response_.status == 405) message_->set(http::field::allow, "GET, HEAD");
    message_->content_length(response_.body->size());
    if (!head_only_) message_->body() = {response_.body->data(), response_.body->size()};
    tcp_stream().expires_after(options_.timeout);
    give_up_ = Now() + options_.timeout;
    serializer_.emplace(*message_);
    auto done = [self = Self()](ErrorCode error, std::size_t) { self->Sent(error); };
    if (head_only_) {
      http::async_write_header(stream_, *serializer_, std::move(done));
    } else {
      http::async_write(stream_, *serializer_, std::move(done));
    }
  }

  void Sent(ErrorCode error) {
    if (dropped_) return;
    if (error == beast::error::timeout) return CountTimeout();
    if (error) return;
    response_.body.reset();
    held_.phase = ConnectionPhase::kEnding;
    if constexpr (kTls) {
      // Without its end in TLS, the client could not tell it from one that somebody has cut off.
      stream_.async_shutdown([self = Self()](ErrorCode) {
        if (!self->dropped_) self->CloseAfterClient();
      });
    } else {
      CloseAfterClient();
    }
  }

  void CloseAfterClient() {
    ErrorCode ignored;
    tcp_stream().socket().shutdown(tcp::socket::shutdown_send, ignored);
    // The response may still be on its way, and closing would cut it off. So whatever the client
    // sends is read and thrown away until it closes its end, or the response's time is over.
    Linger();
  }

  void Linger() {
    buffer_.clear();
    tcp_stream().async_read_some(buffer_.prepare(kReadBytes),
                                 [self = Self()](ErrorCode error, std::size_t) {
                                   if (!error && !self->dropped_) self->Linger();
                                   if (error == asio::error::eof) self->AwaitDelivery();
                                 });
  }

  // A client may end its side before it has the response, or while that is still in its kernel's
  // window. The close would reset the connection, and what is under way would be lost.
  void AwaitDelivery() {
    int unacknowledged = 0;
    const int socket = tcp_stream().socket().native_handle();
    if (dropped_ || Now() >= give_up_ || ioctl(socket, SIOCOUTQ, &unacknowledged) != 0 ||
        unacknowledged == 0) {
      return;
    }
    pause_.expires_after(kDeliveryCheck);
    pause_.async_wait([self = Self()](ErrorCode) { self->AwaitDelivery(); });
  }

  void CountTimeout() { ++counters_.timeouts; }

  Stream stream_;
  asio::steady_timer pause_{stream_.get_executor()};
  TimePoint give_up_ = kNever;  // On the response.
  HeldConnection held_;
  const HttpServerOptions& options_;
  const HttpServer::Handler& handler_;
  Counters& counters_;
  beast::flat_buffer buffer_;
  http::request_parser<http::empty_body> parser_;
  bool head_only_ = false;
  bool dropped_ = false;
  std::shared_ptr<ConnectionOver> at_handler_;  // This, until the response comes or it is dropped.
  HttpResponse response_;
  std::optional<http::response<Body>> message_;
  std::optional<http::response_serializer<Body>> serializer_;
};

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
    tcp::resolver resolver(context_);
    const tcp::endpoint endpoint =
        *resolver.resolve(host, port, tcp::resolver::passive | tcp::resolver::numeric_service)
             .begin();
    acceptor_.open(endpoint.protocol());
    acceptor_.set_option(tcp::acceptor::reuse_address(true));
    acceptor_.bind(endpoint);
    acceptor_.listen();
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
  void Run() {
    while (!context_.stopped()) {
      try {
        context_.run();
      } catch (const std::exception&) {
        // No memory for one connection's operation: its connection is gone with it.
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

  // The listener stays readable while no descriptor is left, so asking it at once would spin. One
  // of our own makes room for whoever waits there.
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
    if (error) return;  // It has left already.
    const std::string peer = PeerOf(endpoint);
    const auto held = Held();
    if (const auto victim = MakesRoom(held.facts, peer, options_.connections)) {
      Evict(*held.connections[*victim]);
    }
    const std::shared_ptr<Connection> connection = MakeConnection(std::move(socket), peer);
    connection->make_room_for_body = [this](Connection& one) { MakeRoomForBody(one); };
    connections_.push_back(connection);
    connection->Start();
  }

  std::shared_ptr<Connection> MakeConnection(tcp::socket socket, const std::string& peer) {
    const ServerParts server{options_, handler_, counters_};
    const std::uint64_t number = next_number_++;
    if (options_.tls == nullptr) {
      return std::make_shared<ConnectionOver<PlainStream>>(PlainStream(std::move(socket)), peer,
                                                           number, server);
    }
    const std::shared_ptr<SSL_CTX> shared = options_.tls();
    SSL_CTX_up_ref(shared.get());
    asio::ssl::context context(shared.get());  // Lets go of one reference.
    return std::make_shared<ConnectionOver<TlsStream>>(
        TlsStream(beast::tcp_stream(std::move(socket)), context), peer, number, server);
  }

  struct Snapshot {
    std::vector<std::shared_ptr<Connection>> connections;
    std::vector<HeldConnection> facts;
  };
  Snapshot Held() {
    Snapshot held;
    std::erase_if(connections_, [&held](const std::weak_ptr<Connection>& weak) {
      std::shared_ptr<Connection> connection = weak.lock();
      if (connection == nullptr) return true;
      held.facts.push_back(connection->held());
      held.connections.push_back(std::move(connection));
      return false;
    });
    return held;
  }

  void Evict(Connection& connection) {
    ++counters_.evictions;
    connection.Drop();
    std::erase_if(connections_, [&connection](const std::weak_ptr<Connection>& weak) {
      const auto other = weak.lock();
      return other == nullptr || other.get() == &connection;
    });
  }

  // Slow readers hold what they read. Those of the peer with most of them go first.
  void MakeRoomForBody(Connection& newest) {
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
  Counters counters_;
  asio::io_context context_{1};
  tcp::acceptor acceptor_{context_};
  asio::steady_timer pause_{context_};
  int port_ = 0;
  std::uint64_t next_number_ = 0;
  // weak: connections end by themselves. Used by the thread alone.
  std::vector<std::weak_ptr<Connection>> connections_;
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
  auto server = std::make_unique<HttpServerImpl>(options, std::move(handler));
  try {
    server->Listen(std::string(host), std::string(port));
  } catch (const std::exception& e) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", Printable(address), ": ", Printable(e.what())));
  }
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace normd
