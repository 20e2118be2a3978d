// The names in a client's certificate.

#ifndef NORMD_SERVER_HTTP_CERTIFICATE_NAMES_H_
#define NORMD_SERVER_HTTP_CERTIFICATE_NAMES_H_

#include <string>
#include <vector>

struct ssl_st;  // OpenSSL's SSL.

namespace normd {

// Subject alternative names, in the certificate's order. A name is any bytes: it is only ever
// compared as a whole.
struct CertificateNames {
  std::vector<std::string> uris;
  std::vector<std::string> dns_names;
};

// The names in the verified certificate of the client of `connection`, whose handshake is done;
// none without one. They are the names that gRPC gives for the same certificate.
// Source: RFC 5280, 4.2.1.6.
CertificateNames VerifiedNamesOf(const ssl_st* connection);

}  // namespace normd

#endif  // NORMD_SERVER_HTTP_CERTIFICATE_NAMES_H_
