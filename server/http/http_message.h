// The HTTP server's requests to its handler, and the handler's responses.

#ifndef NORMD_SERVER_HTTP_HTTP_MESSAGE_H_
#define NORMD_SERVER_HTTP_HTTP_MESSAGE_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "server/http/certificate_names.h"

namespace normd {

// A GET or a HEAD; the server refuses other methods.
struct HttpRequest {
  std::string path;  // As sent, without the query.
  bool accepts_gzip = false;
  std::string peer;  // "127.0.0.1:4711"
  // The header of that name; empty if there are several, because it is unclear which is meant.
  std::optional<std::string> authorization;
  CertificateNames certificate{};  // None without TLS.
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  bool gzip = false;
  // shared: many connections may take the same body. Null: the server writes the status's name.
  std::shared_ptr<const std::string> body;
  std::string fields{};  // Further lines of the head, each with its end.
};

// Called on the server's thread, which it must not delay: slow work calls `respond` later, once,
// from any thread, but not after the server's destruction begins. Must not throw.
using HttpHandler =
    std::function<void(const HttpRequest&, std::function<void(HttpResponse)> respond)>;

}  // namespace normd

#endif  // NORMD_SERVER_HTTP_HTTP_MESSAGE_H_
