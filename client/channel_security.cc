#include "client/channel_security.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/file.h"

namespace normd::client {
namespace {

absl::StatusOr<std::string> ReadFile(absl::string_view option, const std::string& path,
                                     absl::string_view wanted) {
  std::optional<std::string> text = ReadWhole(path);
  if (text && !text->empty()) return *std::move(text);
  return absl::NotFoundError(absl::StrCat(option, ": ", path, ": cannot read ", wanted));
}

struct OpensslFree {
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};

std::unique_ptr<BIO, OpensslFree> Reader(const std::string& pem) {
  return std::unique_ptr<BIO, OpensslFree>(
      BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
}

std::unique_ptr<X509, OpensslFree> FirstCertificate(const std::string& pem) {
  return std::unique_ptr<X509, OpensslFree>(
      PEM_read_bio_X509(Reader(pem).get(), nullptr, nullptr, nullptr));
}

// Called when a key is encrypted. There is nobody to ask.
int NoPassphrase(char*, int, int, void* asked) {
  *static_cast<bool*>(asked) = true;
  return -1;
}

// gRPC says of what it cannot use that its address list is empty.
absl::Status CheckContents(const TlsOptions& files, const grpc::SslCredentialsOptions& ssl) {
  const auto wrong = [](absl::string_view option, const std::string& path, absl::string_view what) {
    ERR_clear_error();  // TLS on this thread would take it for its own.
    return absl::InvalidArgumentError(absl::StrCat(option, ": ", path, " ", what));
  };
  constexpr absl::string_view kNoCertificate = "holds no certificate, wanted PEM";
  if (!ssl.pem_root_certs.empty() && !FirstCertificate(ssl.pem_root_certs)) {
    return wrong("tls_ca", files.ca_file, kNoCertificate);
  }
  if (ssl.pem_cert_chain.empty()) return absl::OkStatus();
  const auto certificate = FirstCertificate(ssl.pem_cert_chain);
  if (!certificate) return wrong("tls_cert", files.cert_file, kNoCertificate);
  bool asked = false;
  const std::unique_ptr<EVP_PKEY, OpensslFree> key(
      PEM_read_bio_PrivateKey(Reader(ssl.pem_private_key).get(), nullptr, NoPassphrase, &asked));
  if (!key) {
    return wrong(
        "tls_key", files.key_file,
        asked ? "is encrypted, wanted a key without a passphrase" : "holds no key, wanted PEM");
  }
  if (X509_check_private_key(certificate.get(), key.get()) == 1) return absl::OkStatus();
  return wrong("tls_key", files.key_file,
               absl::StrCat("is not the key of certificate 1 of tls_cert, ", files.cert_file));
}

class TokenInterceptor final : public grpc::experimental::Interceptor {
 public:
  explicit TokenInterceptor(const std::string& authorization) : authorization_(authorization) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    using grpc::experimental::InterceptionHookPoints;
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) {
      methods->GetSendInitialMetadata()->emplace("authorization", authorization_);
    }
    methods->Proceed();
  }

 private:
  const std::string& authorization_;
};

class TokenInterceptors final : public grpc::experimental::ClientInterceptorFactoryInterface {
 public:
  explicit TokenInterceptors(const std::string& token)
      : authorization_(absl::StrCat("Bearer ", token)) {}

  grpc::experimental::Interceptor* CreateClientInterceptor(
      grpc::experimental::ClientRpcInfo*) override {
    return new TokenInterceptor(authorization_);  // gRPC takes ownership.
  }

 private:
  const std::string authorization_;  // Calls keep the channel, and it keeps this.
};

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(
    const std::optional<TlsOptions>& tls) {
  if (!tls) return grpc::InsecureChannelCredentials();
  if (tls->cert_file.empty() != tls->key_file.empty()) {
    return absl::InvalidArgumentError(tls->key_file.empty()
                                          ? "tls_key: empty, wanted the key of --tls_cert"
                                          : "tls_cert: empty, wanted the certificate of --tls_key");
  }
  grpc::SslCredentialsOptions ssl;
  struct File {
    const char* option;
    const std::string& path;
    const char* wanted;
    std::string& to;
  };
  const File files[] = {{"tls_ca", tls->ca_file, "certificates", ssl.pem_root_certs},
                        {"tls_cert", tls->cert_file, "a certificate", ssl.pem_cert_chain},
                        {"tls_key", tls->key_file, "a key", ssl.pem_private_key}};
  for (const File& file : files) {
    if (file.path.empty()) continue;
    absl::StatusOr<std::string> text = ReadFile(file.option, file.path, file.wanted);
    if (!text.ok()) return text.status();
    file.to = *std::move(text);
  }
  if (absl::Status status = CheckContents(*tls, ssl); !status.ok()) return status;
  return grpc::SslCredentials(ssl);
}

absl::StatusOr<std::string> ReadToken(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile("token_file", path, "a token");
  if (!text.ok()) return text.status();
  const absl::string_view token = absl::StripAsciiWhitespace(*text);
  if (token.empty() || !std::all_of(token.begin(), token.end(), absl::ascii_isgraph)) {
    return absl::InvalidArgumentError(
        absl::StrCat("token_file: ", path, ": wanted one word, the token"));
  }
  return std::string(token);
}

bool IsLocalTarget(const std::string& target) {
  constexpr absl::string_view kLocal[] = {
      "127.",       "localhost:",     "[::1]:",           "unix:", "unix-abstract:", "ipv4:127.",
      "ipv6:[::1]", "dns:localhost:", "dns:///localhost:"};
  return std::any_of(std::begin(kLocal), std::end(kLocal),
                     [&](absl::string_view start) { return absl::StartsWith(target, start); });
}

Interceptors SendToken(const std::string& token) {
  Interceptors all;
  all.push_back(std::make_unique<TokenInterceptors>(token));
  return all;
}

}  // namespace normd::client
