#include "server/tls/tls_context.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "server/tls/openssl.h"

namespace normd {
namespace {

// gRPC's ciphers of TLS 1.2; those of 1.3 are all good.
constexpr char kCiphers[] =
    "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384:"
    "ECDHE-RSA-AES128-GCM-SHA256:ECDHE-RSA-AES256-GCM-SHA384";

bool UseChain(SSL_CTX* context, const std::string& pem) {
  const BioPtr bio = OpensslReader(pem);
  const CertificatePtr own(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
  if (own == nullptr || SSL_CTX_use_certificate(context, own.get()) != 1) return false;
  while (CertificatePtr next{PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)}) {
    if (SSL_CTX_add1_chain_cert(context, next.get()) != 1) return false;
  }
  ERR_clear_error();  // The end of the file counts as an error too.
  return true;
}

bool UseKey(SSL_CTX* context, const std::string& pem) {
  const BioPtr bio = OpensslReader(pem);
  const KeyPtr key(PEM_read_bio_PrivateKey(bio.get(), nullptr, nullptr, nullptr));
  return key != nullptr && SSL_CTX_use_PrivateKey(context, key.get()) == 1 &&
         SSL_CTX_check_private_key(context) == 1;
}

bool TrustAuthorities(SSL_CTX* context, const std::string& pem) {
  const BioPtr bio = OpensslReader(pem);
  X509_STORE* store = SSL_CTX_get_cert_store(context);
  while (CertificatePtr authority{PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)}) {
    if (X509_STORE_add_cert(store, authority.get()) != 1 ||
        SSL_CTX_add_client_CA(context, authority.get()) != 1) {
      return false;
    }
  }
  ERR_clear_error();
  return true;
}

// Without such a key a server that knows TLS 1.3 falls back to 1.2, silently.
bool IsKeyForTls13(EVP_PKEY* key) {
  switch (EVP_PKEY_get_base_id(key)) {
    case EVP_PKEY_RSA:
    case EVP_PKEY_ED25519:
    case EVP_PKEY_ED448: return true;
    case EVP_PKEY_EC: break;
    default: return false;
  }
  char curve[64] = "";
  if (EVP_PKEY_get_group_name(key, curve, sizeof(curve), nullptr) != 1) return false;
  for (const absl::string_view known : {"prime256v1", "secp384r1", "secp521r1"}) {
    if (known == curve) return true;
  }
  return false;
}

absl::Status Refused(absl::string_view what) {
  return absl::FailedPreconditionError(
      absl::StrCat(what, ": OpenSSL does not take it: ", OpensslReason()));
}

}  // namespace

absl::StatusOr<std::shared_ptr<SSL_CTX>> MakeTlsContext(const TlsMaterial& material,
                                                        const TlsPolicy& policy) {
  ERR_clear_error();
  // shared: with the connections that began with it.
  const std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_server_method()), SSL_CTX_free);
  if (context == nullptr) return Refused("TLS");
  SSL_CTX* raw = context.get();
  const int oldest = policy.min_version == TlsVersion::k13 ? TLS1_3_VERSION : TLS1_2_VERSION;
  SSL_CTX_set_min_proto_version(raw, oldest);
  SSL_CTX_set_options(
      raw, SSL_OP_NO_RENEGOTIATION | SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_NO_COMPRESSION);
  // Connections have one request each. Without tickets nobody resumes a session begun with another
  // certificate, or other authorities.
  SSL_CTX_set_options(raw, SSL_OP_NO_TICKET);
  SSL_CTX_set_session_cache_mode(raw, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(raw, SSL_MODE_RELEASE_BUFFERS);
  if (SSL_CTX_set_cipher_list(raw, kCiphers) != 1) return Refused("ciphers");
  if (!UseChain(raw, material.certificate)) return Refused("tls_cert");
  if (!UseKey(raw, material.key)) return Refused("tls_key");
  if (policy.min_version == TlsVersion::k13 && !IsKeyForTls13(SSL_CTX_get0_privatekey(raw))) {
    return absl::FailedPreconditionError(
        "tls_key: TLS 1.3 has no signatures of such a key, wanted RSA, P-256, P-384, P-521, "
        "Ed25519 or Ed448");
  }
  if (!TrustAuthorities(raw, material.client_ca)) return Refused("tls_client_ca");
  const int verify = policy.client_auth == ClientAuth::kNone ? SSL_VERIFY_NONE
                     : policy.client_auth == ClientAuth::kAllow
                         ? SSL_VERIFY_PEER
                         : SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT;
  SSL_CTX_set_verify(raw, verify, nullptr);
  return context;
}

}  // namespace normd
