// OpenSSL's objects and errors in C++.

#ifndef NORMD_SERVER_TLS_OPENSSL_H_
#define NORMD_SERVER_TLS_OPENSSL_H_

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/x509.h>

#include <memory>
#include <string>

#include "absl/strings/string_view.h"

namespace normd {

template <auto kFree>
struct OpensslDeleter {
  template <typename T>
  void operator()(T* object) const {
    kFree(object);
  }
};

using BioPtr = std::unique_ptr<BIO, OpensslDeleter<BIO_free>>;
using CertificatePtr = std::unique_ptr<X509, OpensslDeleter<X509_free>>;
using KeyPtr = std::unique_ptr<EVP_PKEY, OpensslDeleter<EVP_PKEY_free>>;

// Reads from `text`, which outlives it. `text` is smaller than 2 GiB.
BioPtr OpensslReader(absl::string_view text);

// OpenSSL's last error of this thread in its own words; forgets them all.
std::string OpensslReason();

}  // namespace normd

#endif  // NORMD_SERVER_TLS_OPENSSL_H_
