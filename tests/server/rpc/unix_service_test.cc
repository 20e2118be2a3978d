// The service behind a unix socket.

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <thread>

#include "server/net/listener.h"
#include "server/tls/certificate_store.h"
#include "tests/server/identity/identity_files.h"
#include "tests/server/rpc/test_server.h"
#include "tests/support/certificates.h"
#include "tests/support/counting_metrics.h"
#include "tests/support/threads.h"

namespace normd::testing {
namespace {

class UnixServiceTest : public ::testing::Test {
 protected:
  TestServerOptions Options() const {
    TestServerOptions options;
    options.listen = "unix://" + path_;
    return options;
  }
  static grpc::Status Call(v1::NormService::Stub& stub) {
    grpc::ClientContext context;
    v1::NormalizeResponse response;
    return stub.Normalize(&context, MakeRequest("layer_norm_1024", {2, 1024}), &response);
  }

  const CertificateFolder folder_;
  const std::string path_ = folder_.path("normd.sock");
};

TEST_F(UnixServiceTest, ServesManyConnectionsAtOnceAndLeavesNoFile) {
  {
    TestServer server(Options());
    RunThreads(4, [&](int) {
      for (int connection = 0; connection < 5; ++connection) {
        const auto stub = v1::NormService::NewStub(server.NewChannel());
        for (int call = 0; call < 20; ++call) {
          const grpc::Status status = Call(*stub);
          EXPECT_TRUE(status.ok()) << status.error_message();
        }
      }
    });
    server.WaitIdle();
    EXPECT_GE(server.Metric("normd_connections_accepted_total"), 20);
    EXPECT_TRUE(std::filesystem::exists(path_));
  }
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(UnixServiceTest, ServesUnixSocketsAndTcpTogether) {
  TestServerOptions options;
  const std::string other = folder_.path("other.sock");
  options.listen = "unix://" + path_ + ",127.0.0.1:0,unix:" + other;
  TestServer server(options);
  ASSERT_GT(server.port(), 0);
  for (const std::string& address :
       {"unix://" + path_, "127.0.0.1:" + std::to_string(server.port()), "unix://" + other,
        "unix://" + path_}) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const auto stub = v1::NormService::NewStub(
        grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
    const grpc::Status status = Call(*stub);
    EXPECT_TRUE(status.ok()) << address << ": " << status.error_message();
  }
  EXPECT_EQ(server.Metric("normd_connections_accepted_total"), 4);
}

// The policy knows the server's user by its socket, and nobody else.
TEST_F(UnixServiceTest, TheSocketsUserIsAnIdentity) {
  const IdentityFolder files;
  TestServerOptions options = Options();
  options.listen += ",127.0.0.1:0";
  options.access = {files.Write("policy", R"(
      role { name: "user" infer: "layer_norm_1024" }
      identity { name: "here" role: "user" unix_socket: true }
      identity { name: "far" role: "user" token: "t" })"),
                    files.Write("tokens", TokenLine("t", TokenOf('t')))};
  TestServer server(options);
  const auto stub_at = [](const std::string& address) {
    return v1::NormService::NewStub(
        grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  };
  const auto here = stub_at("unix://" + path_);
  EXPECT_TRUE(Call(*here).ok()) << Call(*here).error_message();
  server.WaitIdle();  // A call is counted when its client has the response.
  EXPECT_GT(server.Metric("normd_identity_calls_total{identity=\"here\""), 0);
  const auto tcp = stub_at("127.0.0.1:" + std::to_string(server.port()));
  EXPECT_EQ(Call(*tcp).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  // A token counts before the socket, also a wrong one.
  grpc::ClientContext context;
  context.AddMetadata("authorization", BearerOf('x'));
  v1::NormalizeResponse response;
  EXPECT_EQ(
      here->Normalize(&context, MakeRequest("layer_norm_1024", {2, 1024}), &response).error_code(),
      grpc::StatusCode::UNAUTHENTICATED);
}

TEST_F(UnixServiceTest, ASecondServerLeavesTheFirstItsPlace) {
  TestServer first(Options());
  const auto second = Listen("unix://" + path_);
  EXPECT_FALSE(second.ok());
  EXPECT_TRUE(Call(first.stub()).ok());
}

TEST_F(UnixServiceTest, StopsWithCallsUnderWay) {
  TestServer server(Options());
  ASSERT_TRUE(Call(server.stub()).ok());
  GracefulStop stop({Duration(0), std::chrono::seconds(20)}, server.stop_parts());
  std::thread stopper([&] {
    stop.Signal();
    EXPECT_EQ(stop.Run(), GracefulStop::Outcome::kClean);
  });
  // As long as it answers, well; then UNAVAILABLE and nothing else.
  grpc::Status status;
  while ((status = Call(server.stub())).ok()) {
  }
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
  stopper.join();
}

TEST_F(UnixServiceTest, SpeaksTlsToo) {
  const TestPki pki = {};
  CountingTlsMetrics metrics;
  CertificateStoreOptions options;
  options.files = {folder_.Write("tls.crt", pki.server.certificate),
                   folder_.Write("tls.key", pki.server.key), ""};
  const auto store = CertificateStore::Create(options, metrics);
  ASSERT_TRUE(store.ok()) << store.status();
  TestServerOptions server_options = Options();
  server_options.tls = store->get();
  grpc::SslCredentialsOptions ssl;
  ssl.pem_root_certs = pki.authority.certificate;
  server_options.credentials = grpc::SslCredentials(ssl);
  TestServer server(server_options);
  grpc::ClientContext context;
  context.set_authority("localhost");
  grpc::ChannelArguments arguments;
  arguments.SetSslTargetNameOverride("localhost");
  const auto stub = v1::NormService::NewStub(
      grpc::CreateCustomChannel("unix://" + path_, server_options.credentials, arguments));
  v1::NormalizeResponse response;
  const grpc::Status status =
      stub->Normalize(&context, MakeRequest("layer_norm_1024", {2, 1024}), &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
}

}  // namespace
}  // namespace normd::testing
