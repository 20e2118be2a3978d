// OpenSSL's side of a server's TLS.

#ifndef NORMD_SERVER_TLS_TLS_CONTEXT_H_
#define NORMD_SERVER_TLS_TLS_CONTEXT_H_

#include <openssl/ssl.h>

#include <memory>

#include "absl/status/statusor.h"
#include "server/tls/tls_files.h"

namespace normd {

// Whether a client shows a certificate. A shown one is always verified.
enum class ClientAuth { kNone, kAllow, kRequire };

enum class TlsVersion { k12, k13 };

struct TlsPolicy {
  ClientAuth client_auth = ClientAuth::kNone;
  TlsVersion min_version = TlsVersion::k12;
};

// A context for servers with `material`: TLS 1.2 or 1.3, for 1.2 only forward-secret key exchanges
// with authenticated ciphers, no renegotiation. FailedPrecondition, with the flag, when OpenSSL
// refuses something, such as a short key.
absl::StatusOr<std::shared_ptr<SSL_CTX>> MakeTlsContext(const TlsMaterial& material,
                                                        const TlsPolicy& policy);

}  // namespace normd

#endif  // NORMD_SERVER_TLS_TLS_CONTEXT_H_
