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

// How a server is asked that wants to know who asks. `tls` counts for a URL with https alone.
struct HttpSecurity {
  TlsOptions tls = {};
  std::string token = {};  // Sent as "authorization: Bearer ..."; empty: none.
};

// "http://127.0.0.1:8002/metrics", "https://[::1]:8002"; without a scheme it is http.
// InvalidArgument for anything else.
absl::StatusOr<HttpUrl> ParseHttpUrl(absl::string_view text);

// The body of the response to GET, spoken as HTTP/1.0: the connection's end is the body's. Blocks,
// for at most `timeout` once the name is resolved. Unavailable when nothing answers or the response
// breaks off, or when the two sides do not agree on TLS; DeadlineExceeded after `timeout`; Internal
// for a status other than 200, a response that is not HTTP, and one of more than 64 MiB;
// InvalidArgument for a file of `security` that cannot be used. Messages name the URL.
//
// With TLS, of version 1.2 or newer, the server's certificate is verified, with its name, and its
// end of the connection has to be there: a body that is cut off is no body.
absl::StatusOr<std::string> HttpGet(const HttpUrl& url, Duration timeout,
                                    const HttpSecurity& security = {});

}  // namespace normd::client

#endif  // NORMD_CLIENT_SCRAPE_HTTP_GET_H_
