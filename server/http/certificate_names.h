// What a client's certificate says of who it is.

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

// Those of the certificate that the client of `connection`, whose handshake is done, has shown and
// that was verified; none without one. They are the names that gRPC gives for the same certificate.
// Source: RFC 5280, 4.2.1.6.
CertificateNames VerifiedNamesOf(const ssl_st* connection);

}  // namespace normd

#endif  // NORMD_SERVER_HTTP_CERTIFICATE_NAMES_H_
