// The head of a request, between the bytes of a connection and what becomes of them.

#ifndef NORMD_SERVER_HTTP_REQUEST_HEAD_H_
#define NORMD_SERVER_HTTP_REQUEST_HEAD_H_

#include <cstddef>
#include <optional>

#include "boost/beast/core/flat_buffer.hpp"
#include "boost/beast/http.hpp"
#include "server/http/http_message.h"

namespace normd {

// Reads one head of at most `max_bytes`, and nothing of what follows it.
class RequestHead {
 public:
  using Parser = boost::beast::http::request_parser<boost::beast::http::empty_body>;

  explicit RequestHead(std::size_t max_bytes);

  // For Beast's read_header and async_read_header.
  boost::beast::flat_buffer& buffer() { return buffer_; }
  Parser& parser() { return parser_; }

  // What the read of a head came to.
  struct Outcome {
    int refusal = 0;         // The status of the response to what is no request for us.
    bool head_only = false;  // The response has no body.
    // Without the peer and its certificate. Neither this nor a refusal: the client has left.
    std::optional<HttpRequest> request;
  };
  // `error` is what the read ended with, `bytes` what Beast says that it took.
  Outcome Read(boost::system::error_code error, std::size_t bytes) const;

 private:
  const std::size_t max_bytes_;
  boost::beast::flat_buffer buffer_;
  Parser parser_;
};

}  // namespace normd

#endif  // NORMD_SERVER_HTTP_REQUEST_HEAD_H_
