// The service behind TLS: who gets in, and what happens to calls when the certificate changes.

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/descriptor.h"
#include "server/net/listener.h"
#include "server/tls/certificate_store.h"
#include "tests/server/identity/identity_files.h"
#include "tests/server/rpc/test_server.h"
#include "tests/support/certificates.h"
#include "tests/support/metric_value.h"
#include "tests/support/threads.h"

namespace normd::testing {
namespace {

// A client that trusts `authority` and shows `certificate`, if that is not null.
std::shared_ptr<grpc::ChannelCredentials> Trusting(const TestCertificate& authority,
                                                   const TestCertificate* certificate = nullptr) {
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = authority.certificate;
  if (certificate != nullptr) {
    options.pem_private_key = certificate->key;
    options.pem_cert_chain = certificate->certificate;
  }
  return grpc::SslCredentials(options);
}

class TlsServiceTest : public ::testing::Test {
 protected:
  TlsServiceTest() {
    Write(pki_.server);
    folder_.Write("ca.crt", pki_.authority.certificate);
    store_options_.files = {folder_.File("tls.crt"), folder_.File("tls.key"),
                            folder_.File("ca.crt")};
  }

  void Write(const TestCertificate& server) {
    folder_.Write("tls.crt", server.certificate);
    folder_.Write("tls.key", server.key);
  }
  void Start(ClientAuth auth, TestServerOptions options = {}) {
    store_options_.policy.client_auth = auth;
    auto store = CertificateStore::Create(store_options_, metrics_.ForTls());
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    options.tls = store_.get();
    options.credentials = Trusting(pki_.authority, &pki_.client);
    server_ = std::make_unique<TestServer>(options);
  }
  // A call over a connection of its own.
  grpc::Status Call(const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
    const auto stub = v1::NormService::NewStub(server_->NewChannel(credentials));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    v1::NormalizeResponse response;
    return stub->Normalize(&context, MakeRequest("layer_norm_1024", {2, 1024}), &response);
  }
  void ExpectRefused(const std::shared_ptr<grpc::ChannelCredentials>& credentials,
                     const char* who) {
    EXPECT_EQ(Call(credentials).error_code(), grpc::StatusCode::UNAVAILABLE) << who;
  }
  Descriptor Connect() {
    Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in to = {};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<in_port_t>(server_->port()));
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    EXPECT_EQ(connect(socket.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
    return socket;
  }

  const SecretFolder folder_;
  const TestPki pki_ = {};
  const TestPki other_ = {};
  Metrics metrics_;
  CertificateStoreOptions store_options_;
  std::unique_ptr<CertificateStore> store_;
  std::unique_ptr<TestServer> server_;
};

TEST_F(TlsServiceTest, ServesEveryKindOfClientThatItsPolicyAllows) {
  const TestCertificate expired = MakeCertificate(
      {.name = "late", .end = absl::Now() - absl::Minutes(1), .extended_usage = "clientAuth"},
      &pki_.authority);
  for (const ClientAuth auth : {ClientAuth::kNone, ClientAuth::kAllow, ClientAuth::kRequire}) {
    Start(auth);
    EXPECT_TRUE(Call(Trusting(pki_.authority, &pki_.client)).ok());
    const grpc::Status anonymous = Call(Trusting(pki_.authority));
    EXPECT_EQ(anonymous.ok(), auth != ClientAuth::kRequire) << anonymous.error_message();
    if (auth != ClientAuth::kNone) {
      ExpectRefused(Trusting(pki_.authority, &other_.client), "a certificate of another authority");
      ExpectRefused(Trusting(pki_.authority, &expired), "a certificate that has expired");
      ExpectRefused(Trusting(pki_.authority, &pki_.server), "a server's certificate");
    }
    // What the server shows is the client's to judge.
    ExpectRefused(Trusting(other_.authority, &pki_.client), "who trusts another authority");
    ExpectRefused(grpc::InsecureChannelCredentials(), "who speaks no TLS");
  }
}

TEST_F(TlsServiceTest, IsRefusedByAClientWhenItsNameIsAnother) {
  Write(MakeCertificate({.alternative_names = "DNS:elsewhere.test"}, &pki_.authority));
  Start(ClientAuth::kNone);
  ExpectRefused(Trusting(pki_.authority), "who asks for another name");
}

TEST_F(TlsServiceTest, CountsWhoDoesNotSpeakTls) {
  Start(ClientAuth::kNone);
  const Descriptor socket = Connect();
  const std::string preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  ASSERT_EQ(send(socket.get(), preface.data(), preface.size(), 0),
            static_cast<ssize_t>(preface.size()));
  char reply[64];
  EXPECT_EQ(recv(socket.get(), reply, sizeof(reply), MSG_WAITALL), 0);
  EXPECT_EQ(server_->Metric("normd_connections_ended_total{port=\"grpc\",reason=\"no_tls\"}"), 1);
}

// Neither a hello that never ends nor a handshake that never does keeps its place.
TEST_F(TlsServiceTest, EndsHandshakesThatAreNotDoneInTime) {
  TestServerOptions options;
  options.handshake_timeout = std::chrono::milliseconds(100);
  Start(ClientAuth::kRequire, options);
  const Descriptor silent = Connect();
  const Descriptor half = Connect();
  ASSERT_EQ(send(half.get(), "\x16\x03\x01", 3, 0), 3);
  // A whole hello, from a client that says nothing more.
  SSL_CTX* context = SSL_CTX_new(TLS_client_method());
  SSL* client = SSL_new(context);
  BIO* out = BIO_new(BIO_s_mem());
  SSL_set_bio(client, BIO_new(BIO_s_mem()), out);
  SSL_connect(client);
  char* hello = nullptr;
  const auto size = static_cast<std::size_t>(BIO_get_mem_data(out, &hello));
  const Descriptor shaking = Connect();
  ASSERT_EQ(send(shaking.get(), hello, size, 0), static_cast<ssize_t>(size));
  SSL_free(client);
  SSL_CTX_free(context);
  for (const Descriptor* socket : {&silent, &half, &shaking}) {
    char buffer[4096];
    while (recv(socket->get(), buffer, sizeof(buffer), 0) > 0) {
    }
  }
  EXPECT_TRUE(Call(Trusting(pki_.authority, &pki_.client)).ok());
}

// Callers that never stop, each call on a connection of its own or on one that stays, while the
// certificate, the authority's file and broken files between them come and go: no call fails.
TEST_F(TlsServiceTest, LosesNoCallWhileCertificatesChange) {
  Start(ClientAuth::kRequire);
  std::atomic<bool> done{false};
  std::atomic<int> calls{0};
  std::atomic<int> failures{0};
  const auto count = [&](const grpc::Status& status) {
    ++calls;
    if (status.ok()) return;
    ++failures;
    ADD_FAILURE() << status.error_code() << " " << status.error_message();
  };
  std::vector<std::thread> callers;
  for (int i = 0; i < 2; ++i) {
    callers.emplace_back([&] {
      while (!done) count(Call(Trusting(pki_.authority, &pki_.client)));
    });
    callers.emplace_back([&] {
      const auto stub = v1::NormService::NewStub(server_->NewChannel());
      while (!done) {
        grpc::ClientContext context;
        v1::NormalizeResponse response;
        count(stub->Normalize(&context, MakeRequest("layer_norm_1024", {2, 1024}), &response));
      }
    });
  }
  constexpr int kRotations = 20;
  for (int i = 0; i < kRotations; ++i) {
    const int before = calls;
    folder_.Write("tls.key", other_.server.key);  // Not its key.
    store_->Look();
    store_->Look();
    Write(MakeCertificate({.name = "rotated"}, &pki_.authority));
    store_->Look();
    store_->Look();
    WaitUntil([&] { return calls >= before + 20; });
  }
  done = true;
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(MetricValue(metrics_, families::kCertificateReloads, {"taken"}), kRotations);
  EXPECT_EQ(MetricValue(metrics_, families::kCertificateReloads, {"refused"}), kRotations);
  EXPECT_EQ(store_->current()->generation, kRotations + 1u);
}

// A new authority counts for the next connection; who has one already keeps it.
TEST_F(TlsServiceTest, NewConnectionsAreJudgedByTheNewAuthorities) {
  Start(ClientAuth::kRequire);
  const auto call = [&] {
    grpc::ClientContext context;
    v1::NormalizeResponse response;
    return server_->stub().Normalize(&context, MakeRequest("layer_norm_1024", {2, 1024}),
                                     &response);
  };
  ASSERT_TRUE(call().ok());
  folder_.Write("ca.crt", other_.authority.certificate);
  store_->Look();
  store_->Look();
  EXPECT_TRUE(call().ok());
  ExpectRefused(Trusting(pki_.authority, &pki_.client), "a certificate of the old authority");
  EXPECT_TRUE(Call(Trusting(pki_.authority, &other_.client)).ok());
}

// The service behind a unix socket.

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

  const SecretFolder folder_;
  const std::string path_ = folder_.File("normd.sock");
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
  const std::string other = folder_.File("other.sock");
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
  const SecretFolder files;
  TestServerOptions options = Options();
  options.listen += ",127.0.0.1:0";
  options.access = {files.Write("policy", R"(
      role { name: "user" infer: "layer_norm_1024" }
      identity { name: "here" role: "user" unix_socket: true }
      identity { name: "far" role: "user" token: "t" })"),
                    WriteTokens(files, "t")};
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
  Metrics metrics;
  CertificateStoreOptions options;
  options.files = {folder_.Write("tls.crt", pki.server.certificate),
                   folder_.Write("tls.key", pki.server.key), ""};
  const auto store = CertificateStore::Create(options, metrics.ForTls());
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
