#include "tests/support/certificates.h"

#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <cstdlib>
#include <memory>

namespace normd::testing {
namespace {

template <auto kFree>
struct Deleter {
  template <typename T>
  void operator()(T* object) const {
    kFree(object);
  }
};
using Bio = std::unique_ptr<BIO, Deleter<BIO_free>>;
using Key = std::unique_ptr<EVP_PKEY, Deleter<EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, Deleter<X509_free>>;
using Extension = std::unique_ptr<X509_EXTENSION, Deleter<X509_EXTENSION_free>>;

void Require(bool done, const char* what) {
  if (done) return;
  std::fprintf(stderr, "certificates: %s failed\n", what);
  std::abort();
}

std::string TextOf(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  return std::string(data, static_cast<std::size_t>(size));
}

Bio Reader(const std::string& text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

Key ReadKey(const std::string& pem) {
  return Key(PEM_read_bio_PrivateKey(Reader(pem).get(), nullptr, nullptr, nullptr));
}

void Extend(X509* certificate, X509* issuer, int nid, const std::string& value) {
  if (value.empty()) return;
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const Extension extension(X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str()));
  Require(extension != nullptr, value.c_str());
  Require(X509_add_ext(certificate, extension.get(), -1) == 1, "an extension");
}

void SetTimes(X509* certificate, const CertificateSpec& spec) {
  ASN1_TIME_set(X509_getm_notBefore(certificate), absl::ToTimeT(spec.begin));
  ASN1_TIME_set(X509_getm_notAfter(certificate), absl::ToTimeT(spec.end));
}

}  // namespace

std::string TestCertificate::EncryptedKey() const {
  const Bio bio(BIO_new(BIO_s_mem()));
  char passphrase[] = "a secret of this test";
  Require(PEM_write_bio_PrivateKey(bio.get(), ReadKey(key).get(), EVP_aes_128_cbc(),
                                   reinterpret_cast<unsigned char*>(passphrase),
                                   sizeof(passphrase) - 1, nullptr, nullptr) == 1,
          "an encrypted key");
  return TextOf(bio.get());
}

TestCertificate MakeCertificate(const CertificateSpec& spec, const TestCertificate* issuer) {
  const Key key(spec.rsa_bits > 0 ? EVP_RSA_gen(static_cast<unsigned>(spec.rsa_bits))
                                  : EVP_PKEY_Q_keygen(nullptr, nullptr, "EC", spec.curve));
  Require(key != nullptr, "a key");
  const Certificate certificate(X509_new());
  X509_set_version(certificate.get(), X509_VERSION_3);
  std::uint64_t serial = 0;
  Require(getentropy(&serial, sizeof(serial)) == 0, "getentropy");
  ASN1_INTEGER_set_uint64(X509_get_serialNumber(certificate.get()), serial >> 1);
  SetTimes(certificate.get(), spec);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate.get()), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(spec.name.c_str()), -1, -1, 0);
  X509_set_pubkey(certificate.get(), key.get());
  Certificate above;
  Key signer;
  if (issuer != nullptr) {
    above.reset(PEM_read_bio_X509(Reader(issuer->certificate).get(), nullptr, nullptr, nullptr));
    signer = ReadKey(issuer->key);
  }
  X509* const by = above != nullptr ? above.get() : certificate.get();
  X509_set_issuer_name(certificate.get(), X509_get_subject_name(by));
  Extend(certificate.get(), by, NID_basic_constraints,
         spec.authority ? "critical,CA:TRUE" : "CA:FALSE");
  Extend(certificate.get(), by, NID_subject_alt_name, spec.alternative_names);
  Extend(certificate.get(), by, NID_ext_key_usage, spec.extended_usage);
  Require(
      X509_sign(certificate.get(), signer != nullptr ? signer.get() : key.get(), EVP_sha256()) > 0,
      "a signature");
  TestCertificate made;
  const Bio certificate_text(BIO_new(BIO_s_mem()));
  const Bio key_text(BIO_new(BIO_s_mem()));
  PEM_write_bio_X509(certificate_text.get(), certificate.get());
  PEM_write_bio_PrivateKey(key_text.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  made.certificate = TextOf(certificate_text.get());
  made.key = TextOf(key_text.get());
  return made;
}

}  // namespace normd::testing
