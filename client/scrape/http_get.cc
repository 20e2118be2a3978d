#include "client/scrape/http_get.h"

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "boost/asio/io_context.hpp"
#include "boost/asio/ip/tcp.hpp"
#include "boost/asio/ssl/context.hpp"
#include "boost/asio/ssl/stream.hpp"
#include "boost/asio/write.hpp"
#include "boost/beast/core/error.hpp"
#include "boost/beast/core/flat_buffer.hpp"
#include "boost/beast/core/tcp_stream.hpp"
#include "boost/beast/http/parser.hpp"
#include "boost/beast/http/string_body.hpp"

namespace normd::client {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using boost::system::error_code;

constexpr std::uint64_t kMaxBytes = std::uint64_t{64} << 20;
constexpr std::size_t kReadBytes = 65536;

absl::Status Unavailable(absl::string_view what, const error_code& error) {
  if (error == beast::error::timeout) return absl::DeadlineExceededError("no response in time");
  return absl::UnavailableError(absl::StrCat(what, ": ", error.message()));
}

// An error while the response was read.
absl::Status BadResponse(const error_code& error) {
  if (error == http::error::body_limit) {
    return absl::InternalError(absl::StrCat("the response has more than ", kMaxBytes, " bytes"));
  }
  if (error == http::error::partial_message) {
    return absl::UnavailableError("the response broke off");
  }
  // The parser's own errors, including that nothing came at all.
  if (error.category() == make_error_code(http::error::end_of_stream).category()) {
    return absl::InternalError("the response is not HTTP");
  }
  return Unavailable("the response broke off", error);
}

using PlainStream = beast::tcp_stream;
using TlsStream = asio::ssl::stream<beast::tcp_stream>;

// One exchange. Its deadline is the stream's, which holds for all operations together: a server
// that sends a byte now and then does not extend it. Each operation is begun, and then run to its
// end.
template <typename Stream>
class Exchange {
 public:
  // `more` are the stream's parameters after its executor.
  template <typename... More>
  explicit Exchange(Duration timeout, More&... more) : timeout_(timeout), stream_(io_, more...) {}

  Stream& stream() { return stream_; }

  absl::StatusOr<std::string> Get(const HttpUrl& url, const std::string& token) {
    error_code error;
    const auto addresses = asio::ip::tcp::resolver(io_).resolve(url.host, url.port, error);
    if (error) return absl::UnavailableError(absl::StrCat("no such host: ", error.message()));
    beast::get_lowest_layer(stream_).expires_after(timeout_);
    beast::get_lowest_layer(stream_).async_connect(addresses, Ended());
    if (error = Wait(); error) return Unavailable("cannot connect", error);
    if constexpr (std::is_same_v<Stream, TlsStream>) {
      stream_.async_handshake(asio::ssl::stream_base::client, Ended());
      if (error = Wait(); error) return NoTls(error);
    }
    const std::string request = absl::StrCat(
        "GET ", url.path, " HTTP/1.0\r\nHost: ", url.host, ":", url.port,
        "\r\nAccept: text/plain\r\n",
        token.empty() ? "" : absl::StrCat("Authorization: Bearer ", token, "\r\n"), "\r\n");
    asio::async_write(stream_, asio::buffer(request), Ended());
    if (error = Wait(); error) return Unavailable("cannot send", error);
    return ReadResponse();
  }

 private:
  // Why the handshake failed; for a certificate, its defect.
  absl::Status NoTls(const error_code& error) {
    const long verified = SSL_get_verify_result(stream_.native_handle());
    if (verified == X509_V_OK) return Unavailable("no TLS", error);
    return absl::UnavailableError(
        absl::StrCat("the server's certificate: ", X509_verify_cert_error_string(verified)));
  }

  // The completion handler of each operation.
  auto Ended() {
    return [this](const error_code& error, const auto&...) { error_ = error; };
  }

  error_code Wait() {
    io_.restart();
    io_.run();
    return error_;
  }

  absl::StatusOr<std::string> ReadResponse() {
    http::response_parser<http::string_body> parser;
    parser.body_limit(kMaxBytes);
    parser.eager(true);
    beast::flat_buffer buffer;
    while (!parser.is_done()) {
      if (const error_code error = ReadMore(buffer, parser); error) return BadResponse(error);
      if (!parser.is_header_done()) continue;
      if (absl::Status status = CheckHead(parser); !status.ok()) return status;
    }
    return std::move(parser.get().body());
  }

  // Gives the parser the next bytes, and the connection's end.
  template <typename Parser>
  error_code ReadMore(beast::flat_buffer& buffer, Parser& parser) {
    stream_.async_read_some(buffer.prepare(kReadBytes),
                            [this, &buffer](const error_code& error, std::size_t bytes) {
                              error_ = error;
                              buffer.commit(bytes);
                            });
    error_code error = Wait();
    if (error == asio::error::eof) {
      error = {};
      if (parser.got_some())
        parser.put_eof(error);
      else
        error = http::error::end_of_stream;
      return error;
    }
    if (error) return error;
    buffer.consume(parser.put(buffer.data(), error));
    return error == http::error::need_more ? error_code() : error;
  }

  template <typename Parser>
  static absl::Status CheckHead(const Parser& parser) {
    const auto& response = parser.get();
    if (response.result() != http::status::ok) {
      return absl::InternalError(absl::StrCat("the response is HTTP/", response.version() / 10, ".",
                                              response.version() % 10, " ", response.result_int(),
                                              " ", std::string(response.reason())));
    }
    // A server that answers HTTP/1.0 with chunks breaks the protocol.
    if (parser.chunked()) {
      return absl::InternalError("the response is in chunks, which HTTP/1.0 has not");
    }
    return absl::OkStatus();
  }

  const Duration timeout_;
  asio::io_context io_;
  Stream stream_;
  error_code error_;
};

absl::Status CannotUse(absl::string_view option, const std::string& file, const error_code& error) {
  return absl::InvalidArgumentError(
      absl::StrCat(option, ": ", file, ": cannot be used: ", error.message()));
}

absl::Status UseFiles(const TlsOptions& files, asio::ssl::context& context) {
  error_code error;
  if (files.cert_file.empty() != files.key_file.empty()) {
    return absl::InvalidArgumentError(files.key_file.empty()
                                          ? "tls_key: empty, wanted the key of --tls_cert"
                                          : "tls_cert: empty, wanted the certificate of --tls_key");
  }
  if (files.ca_file.empty()) {
    context.set_default_verify_paths(error);
    if (error) return CannotUse("tls_ca", "the system's", error);
  } else if (context.load_verify_file(files.ca_file, error)) {
    return CannotUse("tls_ca", files.ca_file, error);
  }
  if (files.cert_file.empty()) return absl::OkStatus();
  // OpenSSL would ask for a passphrase at the terminal.
  context.set_password_callback([](auto&&...) { return std::string(); }, error);
  if (context.use_certificate_chain_file(files.cert_file, error)) {
    return CannotUse("tls_cert", files.cert_file, error);
  }
  if (context.use_private_key_file(files.key_file, asio::ssl::context::pem, error)) {
    return CannotUse("tls_key", files.key_file, error);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> GetOverTls(const HttpUrl& url, Duration timeout,
                                       const HttpSecurity& security) {
  asio::ssl::context context(asio::ssl::context::tls_client);
  SSL_CTX_set_min_proto_version(context.native_handle(), TLS1_2_VERSION);
  if (absl::Status status = UseFiles(security.tls, context); !status.ok()) return status;
  Exchange<TlsStream> exchange(timeout, context);
  TlsStream& stream = exchange.stream();
  const std::string& name = security.tls.server_name.empty() ? url.host : security.tls.server_name;
  SSL* const ssl = stream.native_handle();
  error_code error;
  asio::ip::make_address(name, error);
  int set = 0;
  if (!error) {
    set = X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), name.c_str());
  } else {
    SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    set = SSL_set1_host(ssl, name.c_str());
    SSL_set_tlsext_host_name(ssl, name.c_str());  // An address cannot be asked for by name.
  }
  // Without a name to compare, OpenSSL would accept any.
  if (set != 1) {
    return absl::InvalidArgumentError(absl::StrCat("\"", name, "\" is no server's name"));
  }
  stream.set_verify_mode(asio::ssl::verify_peer, error);
  if (error) return Unavailable("no TLS", error);
  return exchange.Get(url, security.token);
}

}  // namespace

absl::StatusOr<HttpUrl> ParseHttpUrl(absl::string_view text) {
  const absl::Status wrong = absl::InvalidArgumentError(
      absl::StrCat("\"", text, "\", wanted an address such as http://127.0.0.1:8002/metrics"));
  absl::string_view rest = text;
  HttpUrl url;
  url.tls = absl::ConsumePrefix(&rest, "https://");
  if (url.tls) url.port = "443";
  if (!url.tls && !absl::ConsumePrefix(&rest, "http://") && absl::StrContains(rest, "://")) {
    return wrong;
  }
  const std::size_t slash = rest.find('/');
  if (slash != absl::string_view::npos) url.path = std::string(rest.substr(slash));
  absl::string_view host = rest.substr(0, slash);
  const std::size_t colon = host.rfind(':');
  if (colon != absl::string_view::npos && !absl::EndsWith(host, "]")) {
    std::uint32_t port = 0;
    if (!absl::SimpleAtoi(host.substr(colon + 1), &port) || port == 0 || port > 65535) return wrong;
    url.port = absl::StrCat(port);
    host = host.substr(0, colon);
  }
  if (absl::ConsumePrefix(&host, "[") && !absl::ConsumeSuffix(&host, "]")) return wrong;
  url.host = std::string(host);
  // Characters that would end the request line early.
  const bool clean =
      std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 127; });
  if (url.host.empty() || !clean) return wrong;
  return url;
}

absl::StatusOr<std::string> HttpGet(const HttpUrl& url, Duration timeout,
                                    const HttpSecurity& security) {
  absl::StatusOr<std::string> body = url.tls
                                         ? GetOverTls(url, timeout, security)
                                         : Exchange<PlainStream>(timeout).Get(url, security.token);
  if (body.ok()) return body;
  return absl::Status(body.status().code(),
                      absl::StrCat(url.tls ? "https://" : "http://", url.host, ":", url.port,
                                   url.path, ": ", body.status().message()));
}

}  // namespace normd::client
