// Parses the head of a request from a connection's bytes.

#ifndef NORMD_SERVER_HTTP_REQUEST_HEAD_H_
#define NORMD_SERVER_HTTP_REQUEST_HEAD_H_

#include <cstddef>
#include <optional>

#include "boost/asio/buffer.hpp"
#include "boost/beast/core/flat_buffer.hpp"
#include "boost/beast/http/empty_body.hpp"
#include "boost/beast/http/parser.hpp"
#include "server/http/http_message.h"

namespace normd {

// Reads one head of at most `max_bytes`, and nothing after it.
class RequestHead {
 public:
  explicit RequestHead(std::size_t max_bytes);

  // The result of a head.
  struct Outcome {
    int refusal = 0;         // The status of the response to an unacceptable request.
    bool head_only = false;  // The response has no body.
    // Without the peer and its certificate. If there is neither this nor a refusal, the client has
    // left.
    std::optional<HttpRequest> request;
  };

  // The memory for the connection's next bytes.
  boost::asio::mutable_buffer room();
  // Takes `bytes` new bytes. Nullopt while the head is incomplete.
  std::optional<Outcome> Take(std::size_t bytes);
  // The client has ended its side.
  Outcome End();

 private:
  static Outcome Refuse(const boost::system::error_code& error);
  Outcome Accept() const;

  const std::size_t max_bytes_;
  std::size_t parsed_ = 0;
  boost::beast::flat_buffer buffer_;
  boost::beast::http::request_parser<boost::beast::http::empty_body> parser_;
};

}  // namespace normd

#endif  // NORMD_SERVER_HTTP_REQUEST_HEAD_H_
