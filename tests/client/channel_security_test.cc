#include "client/channel_security.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "client/client.h"
#include "grpcpp/grpcpp.h"
#include "normd/v1/norm_service.grpc.pb.h"
#include "tests/support/certificates.h"
#include "tests/support/temp_folder.h"

namespace normd::client {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::Eq;
using ::testing::HasSubstr;
using testing::MakeCertificate;
using ::testing::Not;
using testing::SecretFolder;
using ::testing::SizeIs;
using testing::TestPki;

// Refuses every call, and keeps what came with it.
class Doorkeeper final : public v1::NormService::Service {
 public:
  explicit Doorkeeper(const std::shared_ptr<grpc::ServerCredentials>& credentials) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", credentials, &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    target_ = absl::StrCat("127.0.0.1:", port);
  }
  ~Doorkeeper() override { server_->Shutdown(); }

  grpc::Status ListModels(grpc::ServerContext* context, const v1::ListModelsRequest*,
                          v1::ListModelsResponse*) override {
    return Note(*context);
  }
  grpc::Status Normalize(grpc::ServerContext* context, const v1::NormalizeRequest*,
                         v1::NormalizeResponse*) override {
    return Note(*context);
  }
  grpc::Status NormalizeStream(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::NormalizeStreamResponse, v1::NormalizeStreamRequest>*) override {
    return Note(*context);
  }

  const std::string& target() const { return target_; }
  // The header `authorization` of each call so far; "none" where there was none.
  std::vector<std::string> authorizations() {
    MutexLock lock(mutex_);
    return authorizations_;
  }

 private:
  grpc::Status Note(const grpc::ServerContext& context) {
    const auto& metadata = context.client_metadata();
    const auto found = metadata.find("authorization");
    MutexLock lock(mutex_);
    authorizations_.push_back(
        found == metadata.end() ? "none" : std::string(found->second.data(), found->second.size()));
    EXPECT_LE(metadata.count("authorization"), 1u);
    return {grpc::StatusCode::PERMISSION_DENIED, "noted"};
  }

  Mutex mutex_;
  std::vector<std::string> authorizations_ ABSL_GUARDED_BY(mutex_);
  std::string target_;
  std::unique_ptr<grpc::Server> server_;
};

class ChannelSecurityTest : public ::testing::Test {
 protected:
  std::shared_ptr<grpc::ServerCredentials> MutualTls(const testing::TestCertificate& server) const {
    grpc::SslServerCredentialsOptions options(
        GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
    options.pem_root_certs = pki_.authority.certificate;
    options.pem_key_cert_pairs.push_back({server.key, server.certificate});
    return grpc::SslServerCredentials(options);
  }
  TlsOptions Files() const {
    return {folder_.Write("ca.crt", pki_.authority.certificate),
            folder_.Write("tls.crt", pki_.client.certificate),
            folder_.Write("tls.key", pki_.client.key), ""};
  }
  // The status of a call with these options.
  static absl::Status Call(const std::string& target, const ClientOptions& options) {
    const auto client = Client::Create(target, options);
    if (!client.ok()) return client.status();
    return (*client)->ListModels(std::chrono::seconds(20)).status();
  }

  const SecretFolder folder_;
  const TestPki pki_ = {};
};

TEST_F(ChannelSecurityTest, ShowsItsCertificateAndKnowsTheServerByAnyName) {
  for (const char* name : {"", "elsewhere.test"}) {
    Doorkeeper server(MutualTls(
        *name == '\0'
            ? pki_.server
            : MakeCertificate({.alternative_names = absl::StrCat("DNS:", name)}, &pki_.authority)));
    ClientOptions options;
    options.own_connection = true;
    options.tls = Files();
    if (*name != '\0') {
      EXPECT_EQ(Call(server.target(), options).code(), absl::StatusCode::kUnavailable);
    }
    options.tls->server_name = name;
    EXPECT_THAT(Call(server.target(), options).message(), Eq("noted"));
    options.tls->cert_file = options.tls->key_file = "";
    EXPECT_EQ(Call(server.target(), options).code(), absl::StatusCode::kUnavailable);
  }
}

TEST_F(ChannelSecurityTest, SendsItsTokenWithEveryKindOfCall) {
  ClientOptions options;
  options.token_file = folder_.Write("token", "  s3cret-Token.~+/=\n");
  for (const bool tls : {false, true}) {
    Doorkeeper server(tls ? MutualTls(pki_.server) : grpc::InsecureServerCredentials());
    if (tls) options.tls = Files();
    const auto client = Client::Create(server.target(), options);
    ASSERT_TRUE(client.ok()) << client.status();
    EXPECT_EQ((*client)->ListModels().status().message(), "noted");
    NormalizeRequest request;
    request.model = "m";
    const Tensor x = Tensor::Allocate(norm::DType::kFloat32, Shape::Create({2, 2}).value()).value();
    request.inputs = {x.named()};
    EXPECT_EQ((*client)->Normalize(request).status().message(), "noted");
    EXPECT_THAT(server.authorizations(), AllOf(SizeIs(2), Each(Eq("Bearer s3cret-Token.~+/="))));
  }
  options.token_file = "";
  options.tls.reset();
  Doorkeeper server(grpc::InsecureServerCredentials());
  EXPECT_EQ(Call(server.target(), options).message(), "noted");
  EXPECT_THAT(server.authorizations(), Each(Eq("none")));
}

TEST_F(ChannelSecurityTest, SendsNoTokenInTheClearToAnotherMachine) {
  ClientOptions options;
  options.token_file = folder_.Write("token", "secret");
  for (const char* far : {"192.0.2.1:8001", "dns:///normd.test:8001", "normd.test:8001",
                          "localhost.test:8001", "ipv4:10.0.0.1:1", "128.0.0.1:1"}) {
    const auto client = Client::Create(far, options);
    EXPECT_EQ(client.status().code(), absl::StatusCode::kInvalidArgument) << far;
    EXPECT_THAT(client.status().message(), AllOf(HasSubstr("token_file: without TLS"),
                                                 HasSubstr(far), Not(HasSubstr("secret"))));
  }
  for (const char* near : {"127.0.0.1:1", "localhost:1", "[::1]:1", "unix:///a", "unix:/a",
                           "dns:///localhost:1", "ipv4:127.0.0.1:1"}) {
    EXPECT_TRUE(IsLocalTarget(near)) << near;
  }
}

TEST_F(ChannelSecurityTest, ATokenIsOneWord) {
  for (const char* wrong : {"   \n", "two words", "a\nb", "\x01", "t\xc3\xa4"}) {
    const auto token = ReadToken(folder_.Write("token", wrong));
    EXPECT_EQ(token.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(token.status().message(), HasSubstr("wanted one word, the token"));
  }
  EXPECT_EQ(ReadToken(folder_.File("absent")).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ReadToken(folder_.Write("token", "")).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ChannelSecurityTest, NamesTheFileThatIsMissing) {
  const TlsOptions good = Files();
  for (std::string TlsOptions::*file :
       {&TlsOptions::ca_file, &TlsOptions::cert_file, &TlsOptions::key_file}) {
    TlsOptions wrong = good;
    wrong.*file = folder_.File("absent");
    const auto credentials = MakeChannelCredentials(wrong);
    EXPECT_EQ(credentials.status().code(), absl::StatusCode::kNotFound);
    EXPECT_THAT(credentials.status().message(), HasSubstr("absent: cannot read"));
  }
  TlsOptions half = good;
  half.key_file = "";
  EXPECT_THAT(MakeChannelCredentials(half).status().message(),
              HasSubstr("tls_key: empty, wanted the key of --tls_cert"));
  half = good;
  half.cert_file = "";
  EXPECT_THAT(MakeChannelCredentials(half).status().message(), HasSubstr("tls_cert: empty"));
}

TEST_F(ChannelSecurityTest, NamesTheFileThatIsNoneOfItsKind) {
  const TlsOptions good = Files();
  const auto error = [&](std::string TlsOptions::*file, const std::string& path) {
    TlsOptions wrong = good;
    wrong.*file = path;
    const absl::Status status = MakeChannelCredentials(wrong).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  const std::string& cert = good.cert_file;
  const std::string& key = good.key_file;
  EXPECT_EQ(error(&TlsOptions::ca_file, key),
            "tls_ca: " + key + " holds no certificate, wanted PEM");
  EXPECT_EQ(error(&TlsOptions::cert_file, key),
            "tls_cert: " + key + " holds no certificate, wanted PEM");
  EXPECT_EQ(error(&TlsOptions::key_file, cert), "tls_key: " + cert + " holds no key, wanted PEM");
  const std::string other = folder_.Write("other", pki_.server.key);
  EXPECT_EQ(error(&TlsOptions::key_file, other),
            "tls_key: " + other + " is not the key of certificate 1 of tls_cert, " + cert);
  const std::string locked = folder_.Write("locked", pki_.client.EncryptedKey());
  EXPECT_EQ(error(&TlsOptions::key_file, locked),
            "tls_key: " + locked + " is encrypted, wanted a key without a passphrase");
  // A folder cannot be read.
  TlsOptions folder = good;
  folder.ca_file = folder_.File("");
  EXPECT_THAT(MakeChannelCredentials(folder).status().message(), HasSubstr("cannot read"));
}

}  // namespace
}  // namespace normd::client
