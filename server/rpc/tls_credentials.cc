#include "server/rpc/tls_credentials.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>

#include <cstdint>
#include <string>

#include "server/rpc/plain_credentials.h"

namespace normd {
namespace {

grpc_ssl_client_certificate_request_type RequestTypeOf(ClientAuth auth) {
  switch (auth) {
    case ClientAuth::kNone: return GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE;
    case ClientAuth::kAllow: return GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY;
    case ClientAuth::kRequire: break;
  }
  return GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY;
}

// gRPC's C++ classes either hold one certificate for ever or read files themselves, and a read that
// finds a certificate without its key ends every handshake. Its C interface asks for the
// certificate at each connection.
class TlsCredentials final : public grpc::ServerCredentials {
 public:
  explicit TlsCredentials(const CertificateStore& store)
      : store_(store),
        credentials_(grpc_ssl_server_credentials_create_with_options(
            grpc_ssl_server_credentials_create_options_using_config_fetcher(
                RequestTypeOf(store.policy().client_auth), Fetch, this))) {
    LimitMetadataEntries(credentials_);
  }
  ~TlsCredentials() override { grpc_server_credentials_release(credentials_); }

  // The service judges the caller's identity.
  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  // Runs at the server's start and at each connection, one after another, under gRPC's lock.
  static grpc_ssl_certificate_config_reload_status Fetch(
      void* self, grpc_ssl_server_certificate_config** config) {
    auto& credentials = *static_cast<TlsCredentials*>(self);
    const std::shared_ptr<const CertificateStore::State> state = credentials.store_.current();
    if (state->generation == credentials.given_generation_) {
      return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    }
    const TlsMaterial& material = state->material;
    const grpc_ssl_pem_key_cert_pair pair = {material.key.c_str(), material.certificate.c_str()};
    // gRPC requires authorities even if no client is asked for a certificate, and does not use
    // them.
    const std::string& authorities =
        material.client_ca.empty() ? material.certificate : material.client_ca;
    *config = grpc_ssl_server_certificate_config_create(authorities.c_str(), &pair, 1);
    credentials.given_generation_ = state->generation;
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }

  const CertificateStore& store_;
  std::uint64_t given_generation_ = 0;  // Used by Fetch alone.
  grpc_server_credentials* const credentials_;
};

}  // namespace

std::shared_ptr<grpc::ServerCredentials> MakeTlsCredentials(const CertificateStore& store) {
  return std::make_shared<TlsCredentials>(store);
}

}  // namespace normd
