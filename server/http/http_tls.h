// The source of the HTTP server's TLS.

#ifndef NORMD_SERVER_HTTP_HTTP_TLS_H_
#define NORMD_SERVER_HTTP_HTTP_TLS_H_

#include <functional>
#include <memory>

struct ssl_ctx_st;  // OpenSSL's SSL_CTX.

namespace normd {

// The TLS context for the next connection; never null. Called on the server's thread.
using HttpTlsContext = std::function<std::shared_ptr<ssl_ctx_st>()>;

}  // namespace normd

#endif  // NORMD_SERVER_HTTP_HTTP_TLS_H_
