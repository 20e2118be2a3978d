// The identity of a client certificate: over gRPC with every method, and at the metrics port.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/scrape/http_get.h"
#include "inference/grpc_service.grpc.pb.h"
#include "server/metrics/exposer.h"
#include "server/rpc/probes.h"
#include "server/tls/certificate_store.h"
#include "tests/server/identity/identity_files.h"
#include "tests/server/rpc/access_calls.h"
#include "tests/server/rpc/test_server.h"
#include "tests/support/certificates.h"
#include "tests/support/counting_metrics.h"

namespace normd::testing {
namespace {

using google::protobuf::DescriptorPool;
using google::protobuf::MethodDescriptor;
using ::testing::HasSubstr;
using Code = grpc::StatusCode;

constexpr char kUsersModel[] = "instance_norm_64";

// The identities of AccessRules, by certificates; t, which observes, by its token alone.
constexpr char kCertificatePolicy[] = R"(
role { name: "health" health: true }
role { name: "user" infer: "instance_norm_64" }
role { name: "other" infer: "rms_*" }
role { name: "viewer" observe: true }
role { name: "operator" admin: true }
identity { name: "h" role: "health" dns: "h.normd.test" }
identity { name: "u" role: "user" spiffe: "spiffe://normd.test/u" }
identity { name: "w" role: "other" dns: "w.normd.test" }
identity { name: "v" role: "viewer" spiffe: "spiffe://normd.test/v" }
identity { name: "a" role: "operator" spiffe: "spiffe://normd.test/a" dns: "a.normd.test" }
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
    auto store = CertificateStore::Create(certificates, tls_metrics_);
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    TestServerOptions options;
    options.tls = store_.get();
    options.access = {folder_.Write("policy", policy),
                      folder_.Write("tokens", TokenLine("t", TokenOf('t')))};
    server_ = std::make_unique<TestServer>(options);
    ExposerOptions http;
    http.probe = [this](absl::string_view path) {
      return ProbeStatus(path, server_->stop_parts().readiness, server_->registry());
    };
    http.refuse = [this](const PathRequest& request) {
      return PathRefusal(request, server_->authorizer());
    };
    http.tls = [this] { return store_->current()->context; };
    auto exposer = StartExposer("127.0.0.1:0", *metrics_, http);
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
    security.tls.ca_file = certificates_.path("ca.crt");
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
  const CertificateFolder certificates_;
  const IdentityFolder folder_;
  CountingTlsMetrics tls_metrics_;
  const std::unique_ptr<Metrics> metrics_ = CreateMetrics({"test", ""});
  std::unique_ptr<CertificateStore> store_;
  std::unique_ptr<TestServer> server_;
  std::unique_ptr<Exposer> exposer_;
};

TEST_F(CertificateIdentityTest, EveryMethodKeepsItsRuleForCertificatesToo) {
  Start(absl::StrCat(kCertificatePolicy, kAnonymous));
  // x: nobody's, so anonymous, as ' ', who shows none.
  const std::map<char, std::string> names = {
      {'h', "DNS:h.normd.test"},          {'u', "URI:spiffe://normd.test/u"},
      {'w', "DNS:w.normd.test"},          {'v', "URI:spiffe://normd.test/v"},
      {'a', "URI:spiffe://normd.test/a"}, {'x', "URI:spiffe://normd.test/x"}};
  std::map<char, std::shared_ptr<grpc::Channel>> channels = {{' ', ChannelOf(nullptr)}};
  for (const auto& [identity, name] : names) {
    const TestCertificate certificate = Named(name);
    channels[identity] = ChannelOf(&certificate);
  }
  std::set<std::string> seen;
  for (const auto* service : ServicesOf(channels['v'], "")) {
    ASSERT_NE(service, nullptr);
    for (int i = 0; i < service->method_count(); ++i) {
      const MethodDescriptor& method = *service->method(i);
      const AccessRule& rule = AccessRules().at(method.full_name());
      seen.insert(method.full_name());
      for (const auto& [identity, channel] : channels) {
        const Ending ending = MakeCall(channel, "", PathOf(method), WireFor(method, kUsersModel));
        const std::string what = absl::StrCat(method.full_name(), " by '", std::string(1, identity),
                                              "': ", ending.status.error_message());
        const bool anonymous = identity == ' ' || identity == 'x';
        if (MayCall(anonymous ? 'h' : identity, rule)) {
          EXPECT_FALSE(IsDenial(ending.status.error_code())) << what;
        } else {
          EXPECT_EQ(ending.status.error_code(),
                    anonymous ? Code::UNAUTHENTICATED : Code::PERMISSION_DENIED)
              << what;
          EXPECT_EQ(ending.messages, 0) << what;
        }
      }
    }
  }
  EXPECT_EQ(seen.size(), AccessRules().size());
}

TEST_F(CertificateIdentityTest, ARefusalIsTheSameWhetherOrNotThereIsSuchAModel) {
  Start(kCertificatePolicy);
  const TestCertificate other = Named("DNS:w.normd.test");
  const TestCertificate operator_only = Named("DNS:a.normd.test");
  constexpr char kGone[] = "nobody_has_this!";
  static_assert(sizeof(kGone) == sizeof(kUsersModel));
  for (const TestCertificate* certificate :
       {&other, &operator_only, static_cast<const TestCertificate*>(nullptr)}) {
    const auto channel = ChannelOf(certificate);
    for (const char* method :
         {"normd.v1.NormService.Normalize", "normd.v1.NormService.NormalizeStream",
          "normd.v1.NormService.GetModel", "inference.GRPCInferenceService.ModelInfer",
          "inference.GRPCInferenceService.ModelStreamInfer",
          "inference.GRPCInferenceService.ModelReady",
          "inference.GRPCInferenceService.ModelConfig"}) {
      const Ending there = Call(channel, method, kUsersModel);
      const Ending gone = Call(channel, method, kGone);
      EXPECT_EQ(there.status.error_code(), gone.status.error_code()) << method;
      EXPECT_EQ(there.status.error_message(),
                absl::StrReplaceAll(gone.status.error_message(), {{kGone, kUsersModel}}))
          << method;
      EXPECT_EQ(there.messages, gone.messages) << method;
      EXPECT_EQ(there.last_message, absl::StrReplaceAll(gone.last_message, {{kGone, kUsersModel}}))
          << method;
      if (certificate == nullptr) {
        EXPECT_EQ(there.status.error_code(), Code::UNAUTHENTICATED) << method;
      } else if (there.status.ok()) {
        // ModelStreamInfer, which w may begin, refuses each request by itself.
        EXPECT_THAT(there.last_message, HasSubstr("identity \"w\" has no right to calls of"));
      } else {
        EXPECT_EQ(there.status.error_code(), Code::PERMISSION_DENIED) << method;
      }
    }
  }
}

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
