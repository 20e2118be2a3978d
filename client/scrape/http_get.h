// One page over HTTP, such as a server's /metrics.

#ifndef NORMD_CLIENT_SCRAPE_HTTP_GET_H_
#define NORMD_CLIENT_SCRAPE_HTTP_GET_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "client/tls_options.h"

namespace normd::client {

struct HttpUrl {
  std::string host;
  std::string port = "80";
  std::string path = "/";
  bool tls = false;
};

// Credentials for a server that requires them. `tls` applies only to https URLs.
struct HttpSecurity {
  TlsOptions tls = {};
  std::string token = {};  // Sent as "authorization: Bearer ..."; empty: none.
};

// Parses "http://127.0.0.1:8002/metrics", "https://[::1]:8002"; without a scheme it is http.
// InvalidArgument for anything else.
absl::StatusOr<HttpUrl> ParseHttpUrl(absl::string_view text);

// The body of the response to GET, in HTTP/1.0: the connection's end is the body's. Blocks, for at
// most `timeout` once the name is resolved. Unavailable when nothing answers, the response breaks
// off, or TLS cannot be negotiated; DeadlineExceeded after `timeout`; Internal for a status other
// than 200, a response that is not HTTP, and one of more than 64 MiB; InvalidArgument for an
// unusable file of `security`. Messages name the URL.
//
// TLS is version 1.2 or newer. The server's certificate and its name are verified, and the
// connection must end properly: a truncated body is an error.
absl::StatusOr<std::string> HttpGet(const HttpUrl& url, Duration timeout,
                                    const HttpSecurity& security = {});

}  // namespace normd::client

#endif  // NORMD_CLIENT_SCRAPE_HTTP_GET_H_
