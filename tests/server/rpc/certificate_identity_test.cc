// The identity of a client certificate, over gRPC and at the metrics port; access_test.cc has what
// each method asks of an identity.

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/scrape/http_get.h"
#include "inference/grpc_service.grpc.pb.h"
#include "server/metrics/exposer.h"
#include "server/metrics/metrics.h"
#include "server/rpc/probes.h"
#include "server/tls/certificate_store.h"
#include "tests/server/identity/identity_files.h"
#include "tests/server/rpc/access_calls.h"
#include "tests/server/rpc/test_server.h"
#include "tests/support/certificates.h"

namespace normd::testing {
namespace {

using google::protobuf::DescriptorPool;
using Code = grpc::StatusCode;

constexpr char kUsersModel[] = "instance_norm_64";

// u, w and v by certificates; t, which observes, by its token alone.
constexpr char kCertificatePolicy[] = R"(
role { name: "health" health: true }
role { name: "user" infer: "instance_norm_64" }
role { name: "other" infer: "rms_*" }
role { name: "viewer" observe: true }
identity { name: "u" role: "user" spiffe: "spiffe://normd.test/u" }
identity { name: "w" role: "other" dns: "w.normd.test" }
identity { name: "v" role: "viewer" spiffe: "spiffe://normd.test/v" }
identity { name: "t" role: "viewer" token: "t" }
)";
constexpr char kAnonymous[] = "identity { name: \"anybody\" role: \"health\" anonymous: true }";

class CertificateIdentityTest : public ::testing::Test {
 protected:
  void Start(const std::string& policy, ClientAuth auth = ClientAuth::kAllow) {
    // The users of the store end before it.
    exposer_.reset();
    server_.reset();
    CertificateStoreOptions certificates;
    certificates.files = {certificates_.Write("tls.crt", pki_.server.certificate),
                          certificates_.Write("tls.key", pki_.server.key),
                          certificates_.Write("ca.crt", pki_.authority.certificate)};
    certificates.policy.client_auth = auth;
    auto store = CertificateStore::Create(certificates, metrics_.ForTls());
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    TestServerOptions options;
    options.tls = store_.get();
    options.access = {folder_.Write("policy", policy), WriteTokens(folder_, "t")};
    server_ = std::make_unique<TestServer>(options);
    ExposerOptions http;
    http.probe = [this](absl::string_view path) {
      return ProbeStatus(path, server_->stop_parts().readiness, server_->registry());
    };
    http.refuse = [this](const PathRequest& request) {
      return PathRefusal(request, server_->authorizer());
    };
    http.tls = [this] { return store_->current()->context; };
    auto exposer = StartExposer("127.0.0.1:0", metrics_, http);
    ASSERT_TRUE(exposer.ok()) << exposer.status();
    exposer_ = *std::move(exposer);
  }
  ~CertificateIdentityTest() override { exposer_.reset(); }

  TestCertificate Named(const std::string& names) const {
    return MakeCertificate(
        {.name = "client", .alternative_names = names, .extended_usage = "clientAuth"},
        &pki_.authority);
  }
  // Null: without a certificate.
  std::shared_ptr<grpc::Channel> ChannelOf(const TestCertificate* certificate) const {
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = pki_.authority.certificate;
    if (certificate != nullptr) {
      options.pem_private_key = certificate->key;
      options.pem_cert_chain = certificate->certificate;
    }
    return server_->NewChannel(grpc::SslCredentials(options));
  }
  // The HTTP status of a path of the metrics port.
  int HttpStatusOf(const std::string& path, const TestCertificate* certificate,
                   const std::string& token = "") const {
    client::HttpSecurity security;
    security.tls.ca_file = certificates_.File("ca.crt");
    if (certificate != nullptr) {
      security.tls.cert_file = certificates_.Write("client.crt", certificate->certificate);
      security.tls.key_file = certificates_.Write("client.key", certificate->key);
    }
    security.token = token;
    const auto body = client::HttpGet({"127.0.0.1", std::to_string(exposer_->port()), path, true},
                                      std::chrono::seconds(30), security);
    if (body.ok()) return 200;
    for (const int status : {400, 401, 403, 404, 429}) {
      if (absl::StrContains(body.status().message(), absl::StrCat(" ", status, " "))) return status;
    }
    ADD_FAILURE() << body.status();
    return 0;
  }
  static Ending Call(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                     const std::string& model, const std::string& authorization = "") {
    return MakeCall(channel, authorization,
                    absl::StrCat("/", absl::StrReplaceAll(method, {{"Service.", "Service/"}})),
                    WireFor(*DescriptorPool::generated_pool()->FindMethodByName(method), model));
  }
  // Who a client is, by what it may have described: "u", "w", "v", "anybody" or "nobody".
  static std::string WhoByGrpc(const std::shared_ptr<grpc::Channel>& channel) {
    constexpr char kGetModel[] = "normd.v1.NormService.GetModel";
    const Code own = Call(channel, kGetModel, kUsersModel).status.error_code();
    const Code other = Call(channel, kGetModel, "rms_norm_4096").status.error_code();
    if (own == Code::OK) return other == Code::OK ? "v" : "u";
    if (other == Code::OK) return "w";
    EXPECT_EQ(own, Code::UNAUTHENTICATED);
    const Code live =
        Call(channel, "inference.GRPCInferenceService.ServerLive", "").status.error_code();
    return live == Code::OK ? "anybody" : "nobody";
  }
  std::string WhoByHttp(const TestCertificate* certificate) const {
    const int own = HttpStatusOf(absl::StrCat("/v2/models/", kUsersModel, "/ready"), certificate);
    const int other = HttpStatusOf("/v2/models/rms_norm_4096/ready", certificate);
    if (own == 200) return other == 200 ? "v" : "u";
    if (other == 200) return "w";
    EXPECT_EQ(own, 401);
    return HttpStatusOf("/v2/health/live", certificate) == 200 ? "anybody" : "nobody";
  }

  const TestPki pki_ = {};
  const SecretFolder certificates_;
  const SecretFolder folder_;
  Metrics metrics_;
  std::unique_ptr<CertificateStore> store_;
  std::unique_ptr<TestServer> server_;
  std::unique_ptr<Exposer> exposer_;
};

// A certificate is the same identity at both ports, whatever names it has.
TEST_F(CertificateIdentityTest, BothPortsRecogniseTheSameIdentity) {
  struct Case {
    const char* names;
    const char* who;
  };
  constexpr Case kCases[] = {
      {"URI:spiffe://normd.test/u", "u"},
      {"DNS:w.normd.test", "w"},
      {"DNS:W.Normd.TEST", "w"},
      {"URI:spiffe://normd.test/V", "none"},
      {"URI:spiffe://normd.test/v/", "none"},
      {"URI:spiffe://normd.test/", "none"},
      {"DNS:w.normd.test,URI:spiffe://normd.test/u", "u"},  // A URI counts before a DNS name,
      {"URI:spiffe://normd.test/x,DNS:w.normd.test", "w"},  // if it is anybody's.
      {"URI:spiffe://normd.test/x,URI:spiffe://normd.test/v", "v"},
      {"DNS:x.normd.test,DNS:w.normd.test", "w"},
      {"DNS:*.normd.test", "none"},
      {"DNS:w.normd.test.", "none"},
      {"email:w@normd.test,IP:127.0.0.1", "none"},
      {"DNS:spiffe://normd.test/u", "none"},  // A name of one kind is none of the other.
      {"URI:w.normd.test", "none"},
      {"", "none"},
  };
  for (const bool anonymous : {false, true}) {
    Start(anonymous ? absl::StrCat(kCertificatePolicy, kAnonymous) : kCertificatePolicy);
    for (const Case& one : kCases) {
      const TestCertificate certificate = Named(one.names);
      const std::string who = one.who != std::string("none") ? one.who
                              : anonymous                    ? "anybody"
                                                             : "nobody";
      EXPECT_EQ(WhoByGrpc(ChannelOf(&certificate)), who) << one.names;
      EXPECT_EQ(WhoByHttp(&certificate), who) << one.names;
    }
    EXPECT_EQ(WhoByHttp(nullptr), WhoByGrpc(ChannelOf(nullptr)));
  }
}

// Where nobody is asked for a certificate, nobody is known by one.
TEST_F(CertificateIdentityTest, WithoutVerificationACertificateIsNobodys) {
  Start(kCertificatePolicy, ClientAuth::kNone);
  const TestCertificate certificate = Named("URI:spiffe://normd.test/v");
  EXPECT_EQ(WhoByGrpc(ChannelOf(&certificate)), "nobody");
  EXPECT_EQ(WhoByHttp(&certificate), "nobody");
}

TEST_F(CertificateIdentityTest, ATokenCountsBeforeTheCertificateThatCarriesIt) {
  Start(kCertificatePolicy);
  const TestCertificate user = Named("URI:spiffe://normd.test/u");
  const TestCertificate viewer = Named("URI:spiffe://normd.test/v");
  EXPECT_EQ(HttpStatusOf("/metrics", &viewer), 200);
  EXPECT_EQ(HttpStatusOf("/metrics", &user), 403);
  EXPECT_EQ(HttpStatusOf("/metrics", nullptr), 401);
  EXPECT_EQ(HttpStatusOf("/metrics", &user, TokenOf('t')), 200);
  EXPECT_EQ(HttpStatusOf("/metrics", &viewer, TokenOf('x')), 401) << "a wrong token is nobody's";
  constexpr char kListModels[] = "normd.v1.NormService.ListModels";
  EXPECT_TRUE(Call(ChannelOf(&user), kListModels, "", BearerOf('t')).status.ok());
  EXPECT_EQ(Call(ChannelOf(&viewer), kListModels, "", BearerOf('x')).status.error_code(),
            Code::UNAUTHENTICATED);
}

}  // namespace
}  // namespace normd::testing
