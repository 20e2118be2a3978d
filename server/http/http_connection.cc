#include "server/http/http_connection.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>

#include <chrono>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "boost/asio/buffer.hpp"
#include "boost/asio/post.hpp"
#include "boost/asio/ssl/context.hpp"
#include "boost/asio/steady_timer.hpp"
#include "boost/beast/core/tcp_stream.hpp"
#include "boost/beast/http.hpp"
#include "boost/beast/ssl/ssl_stream.hpp"
#include "server/http/request_head.h"

namespace normd {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using tcp = boost::asio::ip::tcp;
using ErrorCode = boost::system::error_code;
using Body = http::span_body<const char>;

// Between two looks at what a client that has ended its side has acknowledged.
constexpr auto kDeliveryCheck = std::chrono::milliseconds(5);

TimePoint Now() { return std::chrono::steady_clock::now(); }

std::string RemoteAddress(const tcp::socket& socket) {
  ErrorCode error;
  const tcp::endpoint endpoint = socket.remote_endpoint(error);
  if (error) return "";
  const std::string host = endpoint.address().to_string();
  return endpoint.address().is_v6() ? absl::StrCat("[", host, "]:", endpoint.port())
                                    : absl::StrCat(host, ":", endpoint.port());
}

using PlainStream = beast::tcp_stream;
using TlsStream = beast::ssl_stream<beast::tcp_stream>;

// One request and its response, on the server's thread. shared: the operation under way holds it,
// or it holds itself while the handler is at work.
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
    // Whenever this is closed early, what its client has not taken is thrown away: the kernel would
    // else keep it for minutes.
    ErrorCode ignored;
    tcp_stream().socket().set_option(tcp::socket::linger(true, 0), ignored);
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

  std::shared_ptr<ConnectionOver> Self() { return this->shared_from_this(); }
  beast::tcp_stream& tcp_stream() { return beast::get_lowest_layer(stream_); }

  CertificateNames ClientCertificate() {
    if constexpr (kTls) return VerifiedNamesOf(stream_.native_handle());
    return {};
  }

  void ReadRequest() {
    http::async_read_header(
        stream_, head_.buffer(), head_.parser(),
        [self = Self()](ErrorCode error, std::size_t bytes) { self->HaveRequest(error, bytes); });
  }

  void HaveRequest(ErrorCode error, std::size_t bytes) {
    if (dropped_) return;
    if (error == beast::error::timeout) return CountTimeout();
    RequestHead::Outcome outcome = head_.Read(error, bytes);
    head_only_ = outcome.head_only;
    if (outcome.refusal != 0) {
      return Send({outcome.refusal, "text/plain; charset=utf-8", false, nullptr});
    }
    if (!outcome.request.has_value()) return;
    held_.phase = ConnectionPhase::kResponding;
    tcp_stream().expires_never();  // The handler may take its time.
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
    tcp_stream().async_read_some(asio::buffer(thrown_away_),
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
  const HttpHandler& handler_;
  HttpCounters& counters_;
  RequestHead head_;
  std::array<char, 4096> thrown_away_;
  bool head_only_ = false;
  bool dropped_ = false;
  std::shared_ptr<ConnectionOver> at_handler_;  // This, until the response comes or it is dropped.
  HttpResponse response_;
  std::optional<http::response<Body>> message_;
  std::optional<http::response_serializer<Body>> serializer_;
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
  asio::ssl::context context(shared.get());  // Lets go of one reference.
  return std::make_shared<ConnectionOver<TlsStream>>(
      TlsStream(beast::tcp_stream(std::move(socket)), context), peer, number, server);
}

}  // namespace normd
