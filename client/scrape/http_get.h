// One page over HTTP, such as a server's /metrics.

#ifndef NORMD_CLIENT_SCRAPE_HTTP_GET_H_
#define NORMD_CLIENT_SCRAPE_HTTP_GET_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"

namespace normd::client {

struct HttpUrl {
  std::string host;
  std::string port = "80";
  std::string path = "/";
};

// "http://127.0.0.1:8002/metrics", "http://[::1]:8002"; the scheme may be left out. InvalidArgument
// for anything else, https included.
absl::StatusOr<HttpUrl> ParseHttpUrl(absl::string_view text);

// The body of the response to GET, spoken as HTTP/1.0: the connection's end is the body's. Blocks,
// for at most `timeout` once the name is resolved. Unavailable when nothing answers or the response
// breaks off; DeadlineExceeded after `timeout`; Internal for a status other than 200, a response
// that is no HTTP, and one of more than 64 MiB. Messages name the URL.
absl::StatusOr<std::string> HttpGet(const HttpUrl& url, Duration timeout);

}  // namespace normd::client

#endif  // NORMD_CLIENT_SCRAPE_HTTP_GET_H_
