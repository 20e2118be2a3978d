// The head of an HTTP request, checked.

#ifndef NORMD_SERVER_REST_REST_HEAD_H_
#define NORMD_SERVER_REST_REST_HEAD_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "boost/beast/http/message.hpp"

namespace normd {

// What the server uses of a head. A header that comes several times counts as its first, except
// for those whose repetition is refused, and `authorization`.
struct RestHead {
  std::string verb;
  std::string target;
  bool http_1_0 = false;
  bool keep_alive = true;
  bool chunked = false;
  std::optional<std::uint64_t> content_length;
  bool expects_continue = false;
  // Empty if there are several, because it is unclear which is meant.
  std::optional<std::string> authorization;
  std::string content_encoding;
  std::string accept_encoding;
  std::string json_bytes;  // Inference-Header-Content-Length.
  std::string origin;
  std::string request_id;
  std::string traceparent;
  std::optional<std::string> in_use;

  bool has_body() const { return chunked || content_length.value_or(0) > 0; }
};

// A request that is answered without being served.
struct RestRefusal {
  int status = 0;  // HTTP's; 0: none.
  std::string why;
  std::string allow = {};  // For 405.
};

using BeastHead = boost::beast::http::header<true, boost::beast::http::fields>;

// Fills `head` from a parsed one. Refuses what two readers could understand differently: several or
// unusual lengths, a length beside chunks, several hosts or none.
// Source: RFC 9112, 5.2, 6.1, 6.3 and 11.2; RFC 9110, 7.2.
RestRefusal ReadHead(const BeastHead& parsed, RestHead& head);

// The `origin` of a browser's request if it may use the response, or "*" if each may; `allowed` is
// RestOptions::allow_origin.
absl::string_view AllowedOrigin(absl::string_view origin, absl::string_view allowed);
RestRefusal CheckOrigin(absl::string_view origin, absl::string_view allowed);

}  // namespace normd

#endif  // NORMD_SERVER_REST_REST_HEAD_H_
