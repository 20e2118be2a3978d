#include "server/http/certificate_names.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <cstddef>
#include <memory>

namespace normd {
namespace {

struct FreeNames {
  void operator()(GENERAL_NAMES* names) const { GENERAL_NAMES_free(names); }
};

std::string TextOf(const ASN1_IA5STRING* text) {
  return std::string(reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
                     static_cast<std::size_t>(ASN1_STRING_length(text)));
}

}  // namespace

CertificateNames VerifiedNamesOf(const SSL* connection) {
  CertificateNames found;
  X509* const certificate = SSL_get0_peer_certificate(connection);
  if (certificate == nullptr || SSL_get_verify_result(connection) != X509_V_OK) return found;
  const std::unique_ptr<GENERAL_NAMES, FreeNames> names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  ERR_clear_error();  // A certificate without such names is valid too.
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* const name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type == GEN_URI) found.uris.push_back(TextOf(name->d.uniformResourceIdentifier));
    if (name->type == GEN_DNS) found.dns_names.push_back(TextOf(name->d.dNSName));
  }
  return found;
}

}  // namespace normd
