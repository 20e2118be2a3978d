// Pages over TLS, from the server that normd's metrics port is.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "client/scrape/http_get.h"
#include "server/http/http_server.h"
#include "server/tls/tls_context.h"
#include "tests/support/certificates.h"

namespace normd::client {
namespace {

using testing::CertificateFolder;
using ::testing::HasSubstr;
using testing::MakeCertificate;
using testing::TestPki;

constexpr Duration kTimeout = std::chrono::seconds(60);

class HttpsGetTest : public ::testing::Test {
 protected:
  void Start(const testing::TestCertificate& certificate, ClientAuth auth = ClientAuth::kNone) {
    server_.reset();
    auto context = MakeTlsContext({certificate.certificate, certificate.key,
                                   pki_.authority.certificate, absl::InfiniteFuture()},
                                  {.client_auth = auth});
    ASSERT_TRUE(context.ok()) << context.status();
    HttpServerOptions options;
    options.tls = [context = *std::move(context)] { return context; };
    // Says who asks.
    auto server = HttpServer::Start(
        "127.0.0.1:0", options, [](const HttpRequest& request, HttpServer::Respond respond) {
          std::string text = request.authorization.value_or("no token");
          for (const std::string& uri : request.certificate.uris) text += " " + uri;
          respond({200, "text/plain", false, std::make_shared<std::string>(std::move(text))});
        });
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  absl::StatusOr<std::string> Get(const HttpSecurity& security,
                                  const std::string& host = "127.0.0.1") const {
    return HttpGet({host, std::to_string(server_->port()), "/metrics", true}, kTimeout, security);
  }
  HttpSecurity Trusting(const testing::TestCertificate& authority) const {
    HttpSecurity security;
    security.tls.ca_file = folder_.Write("ca.crt", authority.certificate);
    return security;
  }
  HttpSecurity Showing(const testing::TestCertificate& client) const {
    HttpSecurity security = Trusting(pki_.authority);
    security.tls.cert_file = folder_.Write("client.crt", client.certificate);
    security.tls.key_file = folder_.Write("client.key", client.key);
    return security;
  }

  const TestPki pki_ = {};
  const TestPki other_ = {};
  const CertificateFolder folder_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpsGetTest, AsksWithItsCertificateAndItsToken) {
  Start(pki_.server, ClientAuth::kRequire);
  HttpSecurity security = Showing(pki_.client);
  EXPECT_EQ(*Get(security), "no token spiffe://normd.test/client");
  security.token = "secret";
  EXPECT_EQ(*Get(security, "localhost"), "Bearer secret spiffe://normd.test/client");
}

TEST_F(HttpsGetTest, AServerIsKnownByItsAuthorityAndItsName) {
  Start(pki_.server);
  EXPECT_TRUE(Get(Trusting(pki_.authority)).ok());
  const absl::Status foreign = Get(Trusting(other_.authority)).status();
  EXPECT_EQ(foreign.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(foreign.message()), HasSubstr("/metrics: the server's certificate: "));
  EXPECT_FALSE(Get({}).ok()) << "nor is it the system's";

  Start(MakeCertificate({.alternative_names = "DNS:elsewhere.test"}, &pki_.authority));
  HttpSecurity security = Trusting(pki_.authority);
  EXPECT_THAT(std::string(Get(security).status().message()), HasSubstr("mismatch"));
  security.tls.server_name = "elsewhere.test";
  EXPECT_TRUE(Get(security).ok());

  Start(MakeCertificate({.end = absl::Now() - absl::Minutes(1)}, &pki_.authority));
  EXPECT_THAT(std::string(Get(Trusting(pki_.authority)).status().message()),
              HasSubstr("the server's certificate: certificate has expired"));
}

// With TLS 1.3 a client learns of it after its own part of the handshake: from an alert, or from
// the end of the connection, which may overtake the alert.
TEST_F(HttpsGetTest, AServerThatWantsACertificateGivesNothingWithoutIt) {
  Start(pki_.server, ClientAuth::kRequire);
  EXPECT_FALSE(Get(Trusting(pki_.authority)).ok());
  EXPECT_FALSE(Get(Showing(other_.client)).ok());
  EXPECT_TRUE(Get(Showing(pki_.client)).ok());
}

TEST_F(HttpsGetTest, AFileThatCannotBeUsedIsNamed) {
  Start(pki_.server);
  const HttpSecurity good = Showing(pki_.client);
  struct File {
    const char* option;
    std::string TlsOptions::*file;
  };
  for (const auto& [option, file] :
       {File{"tls_ca", &TlsOptions::ca_file}, File{"tls_cert", &TlsOptions::cert_file},
        File{"tls_key", &TlsOptions::key_file}}) {
    for (const std::string& wrong : {folder_.path("absent"), folder_.Write("text", "no PEM")}) {
      HttpSecurity security = good;
      security.tls.*file = wrong;
      const absl::Status status = Get(security).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(option + (": " + wrong)));
    }
  }
  HttpSecurity encrypted = good;
  encrypted.tls.key_file = folder_.Write("locked.key", pki_.client.EncryptedKey());
  EXPECT_THAT(std::string(Get(encrypted).status().message()), HasSubstr("tls_key: "));
  HttpSecurity half = good;
  half.tls.key_file = "";
  EXPECT_THAT(std::string(Get(half).status().message()), HasSubstr("tls_key: empty"));
}

TEST_F(HttpsGetTest, WhoSpeaksNoTlsIsNoServer) {
  auto plain = HttpServer::Start("127.0.0.1:0", {}, [](const HttpRequest&, HttpServer::Respond to) {
    to({200, "text/plain", false, nullptr});
  });
  ASSERT_TRUE(plain.ok());
  server_ = *std::move(plain);
  EXPECT_THAT(std::string(Get(Trusting(pki_.authority)).status().message()), HasSubstr("no TLS"));
}

}  // namespace
}  // namespace normd::client
