#include "server/rpc/credentials.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"

namespace normd {
namespace {

// gRPC takes 160 bytes for an entry of metadata, which compressed is one byte on the wire, and
// holds them until the call's message has come. Proxies pass 100.
constexpr std::size_t kMaxMetadataEntries = 256;

// gRPC calls this with a call's metadata; its services see a unary call only with the message.
void JudgeEntries(void* /*state*/, grpc_auth_context* /*context*/,
                  const grpc_metadata* /*metadata*/, std::size_t entries,
                  grpc_process_auth_metadata_done_cb done, void* user_data) {
  if (entries <= kMaxMetadataEntries) {
    return done(user_data, nullptr, 0, nullptr, 0, GRPC_STATUS_OK, nullptr);
  }
  const std::string refusal =
      absl::StrCat("metadata: ", entries, " entries, wanted at most ", kMaxMetadataEntries);
  done(user_data, nullptr, 0, nullptr, 0, GRPC_STATUS_INVALID_ARGUMENT, refusal.c_str());
}

// Judges the metadata. gRPC's C++ classes for plain connections take no processor.
class Credentials : public grpc::ServerCredentials {
 public:
  explicit Credentials(grpc_server_credentials* owned) : credentials_(owned) {
    grpc_server_credentials_set_auth_metadata_processor(credentials_,
                                                        {JudgeEntries, nullptr, nullptr});
  }
  ~Credentials() override { grpc_server_credentials_release(credentials_); }

  // The service judges the caller's identity.
  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  grpc_server_credentials* const credentials_;
};

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
class TlsCredentials final : public Credentials {
 public:
  explicit TlsCredentials(const CertificateStore& store)
      : Credentials(grpc_ssl_server_credentials_create_with_options(
            grpc_ssl_server_credentials_create_options_using_config_fetcher(
                RequestTypeOf(store.policy().client_auth), Fetch, this))),
        store_(store) {}

 private:
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
};

}  // namespace

std::shared_ptr<grpc::ServerCredentials> MakePlainCredentials() {
  return std::make_shared<Credentials>(grpc_insecure_server_credentials_create());
}

std::shared_ptr<grpc::ServerCredentials> MakeTlsCredentials(const CertificateStore& store) {
  return std::make_shared<TlsCredentials>(store);
}

}  // namespace normd
