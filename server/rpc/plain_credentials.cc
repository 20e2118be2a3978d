#include "server/rpc/plain_credentials.h"

#include <grpc/grpc.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace normd {
namespace {

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

// gRPC's C++ class for this takes no processor.
class PlainCredentials final : public grpc::ServerCredentials {
 public:
  PlainCredentials() { LimitMetadataEntries(credentials_); }
  ~PlainCredentials() override { grpc_server_credentials_release(credentials_); }

  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  grpc_server_credentials* const credentials_ = grpc_insecure_server_credentials_create();
};

}  // namespace

void LimitMetadataEntries(grpc_server_credentials* credentials) {
  grpc_server_credentials_set_auth_metadata_processor(credentials,
                                                      {JudgeEntries, nullptr, nullptr});
}

std::shared_ptr<grpc::ServerCredentials> MakePlainCredentials() {
  return std::make_shared<PlainCredentials>();
}

}  // namespace normd
