#include "server/http/http_connection.h"

#include <chrono>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "boost/asio/buffer.hpp"
#include "boost/asio/post.hpp"
#include "boost/asio/ssl/context.hpp"
#include "boost/asio/ssl/stream.hpp"
#include "boost/asio/write.hpp"
#include "boost/beast/core/tcp_stream.hpp"
#include "boost/beast/http/status.hpp"
#include "server/http/connection_end.h"
#include "server/http/request_head.h"

namespace normd {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using tcp = boost::asio::ip::tcp;
using ErrorCode = boost::system::error_code;

std::string RemoteAddress(const tcp::socket& socket) {
  ErrorCode error;
  const tcp::endpoint endpoint = socket.remote_endpoint(error);
  if (error) return "";
  const std::string host = endpoint.address().to_string();
  return endpoint.address().is_v6() ? absl::StrCat("[", host, "]:", endpoint.port())
                                    : absl::StrCat(host, ":", endpoint.port());
}

std::string HeadOf(const HttpResponse& response, absl::string_view reason) {
  return absl::StrCat("HTTP/1.1 ", response.status, " ", reason,
                      "\r\nContent-Type: ", response.content_type, "\r\nConnection: close\r\n",
                      response.fields, response.gzip ? "Content-Encoding: gzip\r\n" : "",
                      response.status == 401 ? "WWW-Authenticate: Bearer\r\n" : "",
                      response.status == 405 ? "Allow: GET, HEAD\r\n" : "",
                      "Content-Length: ", response.body->size(), "\r\n\r\n");
}

using PlainStream = beast::tcp_stream;
using TlsStream = asio::ssl::stream<beast::tcp_stream>;

// One request and its response, on the server's thread. shared: the operation in progress holds it,
// or it holds itself while the handler works.
template <typename Stream>
class ConnectionOver final : public HttpConnection,
                             public std::enable_shared_from_this<ConnectionOver<Stream>> {
 public:
  ConnectionOver(Stream stream, std::string peer, std::uint64_t number,
                 const HttpServerParts& server)
      : stream_(std::move(stream)),
        held_{std::move(peer), ConnectionPhase::kReading, number},
        options_(server.options),
        handler_(server.handler),
        counters_(server.counters),
        head_(options_.max_head_bytes) {
    ++counters_.connections;
  }
  ~ConnectionOver() override { --counters_.connections; }
  ConnectionOver(const ConnectionOver&) = delete;
  ConnectionOver& operator=(const ConnectionOver&) = delete;

  const HeldConnection& held() const override { return held_; }
  const std::string* body() const override { return response_.body.get(); }

  void Start() override {
    // An early close discards bytes that the client has not taken: the kernel would otherwise keep
    // them for minutes.
    ErrorCode ignored;
    tcp_stream().socket().set_option(tcp::socket::linger(true, 0), ignored);
    // One deadline for the whole head: bytes that trickle in do not extend it.
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
    end_.Cancel();
    tcp_stream().close();
    response_.body.reset();
    const auto last = std::move(at_handler_);
  }

 private:
  static constexpr bool kTls = std::is_same_v<Stream, TlsStream>;

  std::shared_ptr<ConnectionOver> Self() { return this->shared_from_this(); }
  beast::tcp_stream& tcp_stream() { return beast::get_lowest_layer(stream_); }

  CertificateNames ClientCertificate() {
    if constexpr (kTls) return VerifiedNamesOf(stream_.native_handle());
    return {};
  }

  void ReadRequest() {
    stream_.async_read_some(head_.room(), [self = Self()](ErrorCode error, std::size_t bytes) {
      self->HaveBytes(error, bytes);
    });
  }

  void HaveBytes(ErrorCode error, std::size_t bytes) {
    if (dropped_) return;
    if (error == beast::error::timeout) return CountTimeout();
    if (error && error != asio::error::eof) return;
    std::optional<RequestHead::Outcome> outcome = error ? head_.End() : head_.Take(bytes);
    if (!outcome.has_value()) return ReadRequest();
    HaveRequest(*std::move(outcome));
  }

  void HaveRequest(RequestHead::Outcome outcome) {
    head_only_ = outcome.head_only;
    if (outcome.refusal != 0) {
      return Send({outcome.refusal, "text/plain; charset=utf-8", false, nullptr});
    }
    if (!outcome.request.has_value()) return;
    held_.phase = ConnectionPhase::kResponding;
    tcp_stream().expires_never();  // The handler has no time limit.
    at_handler_ = Self();
    outcome.request->peer = RemoteAddress(tcp_stream().socket());
    outcome.request->certificate = ClientCertificate();
    handler_(
        *outcome.request,
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
    const std::string reason(http::obsolete_reason(static_cast<http::status>(response_.status)));
    if (response_.body == nullptr) {
      response_.body = std::make_shared<std::string>(reason + "\n");
    } else if (make_room_for_body) {
      make_room_for_body(*this);
    }
    counters_.CountResponse(response_.status);
    response_head_ = HeadOf(response_, reason);
    tcp_stream().expires_after(options_.timeout);
    give_up_ = std::chrono::steady_clock::now() + options_.timeout;
    const std::size_t body_bytes = head_only_ ? 0 : response_.body->size();
    const std::array<asio::const_buffer, 2> parts = {
        asio::buffer(response_head_), asio::buffer(response_.body->data(), body_bytes)};
    asio::async_write(stream_, parts,
                      [self = Self()](ErrorCode error, std::size_t) { self->Sent(error); });
  }

  void Sent(ErrorCode error) {
    if (dropped_) return;
    if (error == beast::error::timeout) return CountTimeout();
    if (error) return;
    response_.body.reset();
    held_.phase = ConnectionPhase::kEnding;
    end_.Begin(stream_, tcp_stream().socket(), give_up_, [self = Self()](bool delivered) {
      ErrorCode ignored;
      if (delivered) self->tcp_stream().socket().set_option(tcp::socket::linger(false, 0), ignored);
      self->tcp_stream().close();
    });
  }

  void CountTimeout() { ++counters_.timeouts; }

  Stream stream_;
  ConnectionEnd end_{stream_.get_executor()};
  TimePoint give_up_ = kNever;  // The deadline of the response.
  HeldConnection held_;
  const HttpServerOptions& options_;
  const HttpHandler& handler_;
  HttpCounters& counters_;
  RequestHead head_;
  bool head_only_ = false;
  bool dropped_ = false;
  // This object, until the response comes or it is dropped.
  std::shared_ptr<ConnectionOver> at_handler_;
  HttpResponse response_;
  std::string response_head_;
};

}  // namespace

std::shared_ptr<HttpConnection> MakeHttpConnection(tcp::socket socket, const std::string& peer,
                                                   std::uint64_t number,
                                                   const HttpServerParts& server) {
  if (server.options.tls == nullptr) {
    return std::make_shared<ConnectionOver<PlainStream>>(PlainStream(std::move(socket)), peer,
                                                         number, server);
  }
  const std::shared_ptr<SSL_CTX> shared = server.options.tls();
  SSL_CTX_up_ref(shared.get());
  asio::ssl::context context(shared.get());  // Releases one reference.
  return std::make_shared<ConnectionOver<TlsStream>>(
      TlsStream(beast::tcp_stream(std::move(socket)), context), peer, number, server);
}

}  // namespace normd
