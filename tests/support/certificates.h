// Certificates that a test makes when it runs.

#ifndef NORMD_TESTS_SUPPORT_CERTIFICATES_H_
#define NORMD_TESTS_SUPPORT_CERTIFICATES_H_

#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace normd::testing {

struct CertificateSpec {
  std::string name = "normd test";
  absl::Time begin = absl::Now() - absl::Hours(1);
  absl::Time end = absl::Now() + absl::Hours(24);
  // In the form of OpenSSL's configuration; empty for none.
  std::string alternative_names = "DNS:localhost,IP:127.0.0.1";
  std::string extended_usage = "";  // "serverAuth", "clientAuth".
  bool authority = false;
  int rsa_bits = 0;  // 0: an elliptic curve.
  const char* curve = "P-256";
};

// A key and its certificate, in PEM.
struct TestCertificate {
  std::string certificate;
  std::string key;

  // The key, encrypted with a passphrase.
  std::string EncryptedKey() const;
};

// Signed by `issuer`, or by itself.
TestCertificate MakeCertificate(const CertificateSpec& spec,
                                const TestCertificate* issuer = nullptr);

// An authority; a server's certificate for localhost and 127.0.0.1, and a client's, both signed by
// it. No two are equal.
struct TestPki {
  TestCertificate authority =
      MakeCertificate({.name = "test authority", .alternative_names = "", .authority = true});
  TestCertificate server = MakeCertificate({.extended_usage = "serverAuth"}, &authority);
  TestCertificate client = MakeCertificate({.name = "test client",
                                            .alternative_names = "URI:spiffe://normd.test/client",
                                            .extended_usage = "clientAuth"},
                                           &authority);
};

}  // namespace normd::testing

#endif  // NORMD_TESTS_SUPPORT_CERTIFICATES_H_
