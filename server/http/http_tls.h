// Where the HTTP server gets its TLS from.

#ifndef NORMD_SERVER_HTTP_HTTP_TLS_H_
#define NORMD_SERVER_HTTP_HTTP_TLS_H_

#include <functional>
#include <memory>

struct ssl_ctx_st;  // OpenSSL's SSL_CTX.

namespace normd {

// What the next connection's TLS begins with; never null. Called on the server's thread.
using HttpTlsContext = std::function<std::shared_ptr<ssl_ctx_st>()>;

}  // namespace normd

#endif  // NORMD_SERVER_HTTP_HTTP_TLS_H_
