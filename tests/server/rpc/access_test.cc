// Rights to call: every method of every service that the server has, over real connections.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "inference/grpc_service.grpc.pb.h"
#include "nlohmann/json.hpp"
#include "server/rpc/probes.h"
#include "tests/server/identity/identity_files.h"
#include "tests/server/rpc/access_calls.h"
#include "tests/server/rpc/raw_client.h"
#include "tests/server/rpc/stream_client.h"
#include "tests/server/rpc/test_server.h"

namespace normd::testing {
namespace {

using google::protobuf::DescriptorPool;
using google::protobuf::MethodDescriptor;
using google::protobuf::ServiceDescriptor;
using ::testing::Contains;
using ::testing::HasSubstr;
using Code = grpc::StatusCode;

constexpr char kModel[] = "instance_norm_64";

// h: health; u: infers with kModel; w: infers with another model; v: observes; a: admin.
constexpr char kPolicy[] = R"(
role { name: "health" health: true }
role { name: "user" infer: "instance_norm_64" }
role { name: "other" infer: "rms_*" }
role { name: "viewer" observe: true }
role { name: "operator" admin: true }
identity { name: "h" role: "health" token: "h" }
identity { name: "u" role: "user" token: "u" }
identity { name: "w" role: "other" token: "w" }
identity { name: "v" role: "viewer" token: "v" }
identity { name: "a" role: "operator" token: "a" }
)";

class AccessTest : public ::testing::Test {
 protected:
  TestServerOptions Options(const std::string& policy = kPolicy) {
    TestServerOptions options;
    options.access = {folder_.Write("policy", policy), WriteTokens(folder_, "huwvam")};
    options.audit = &audit_;
    return options;
  }
  // ' ': without a token.
  static Ending Call(const std::shared_ptr<grpc::Channel>& channel, char identity,
                     const std::string& method, const std::string& wire) {
    return MakeCall(channel, identity == ' ' ? "" : BearerOf(identity), method, wire);
  }
  static Ending Normalize(TestServer& server, char identity, const std::string& model = kModel) {
    return Call(server.NewChannel(), identity, "/normd.v1.NormService/Normalize",
                MakeRequest(model, {1, 64, 2, 2}).SerializeAsString());
  }

  std::size_t audit_lines() {
    MutexLock lock(mutex_);
    return lines_.size();
  }

  SecretFolder folder_;
  SteadyClock clock_;
  Mutex mutex_;
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mutex_);
  AuditLog audit_{clock_, [this](const std::string& line) {
                    MutexLock lock(mutex_);
                    lines_.push_back(line);
                  }};
};

TEST_F(AccessTest, EveryMethodOfEveryServiceHasARuleAndKeepsIt) {
  TestServer server(Options());
  const auto channel = server.NewChannel();
  std::set<std::string> seen;
  for (const ServiceDescriptor* service : ServicesOf(channel, BearerOf('v'))) {
    ASSERT_NE(service, nullptr);
    for (int i = 0; i < service->method_count(); ++i) {
      const MethodDescriptor& method = *service->method(i);
      const auto rule = AccessRules().find(method.full_name());
      ASSERT_NE(rule, AccessRules().end()) << method.full_name() << " has no rule";
      seen.insert(rule->first);
      const std::string wire = WireFor(method, kModel);
      for (const char identity : {' ', 'x', 'h', 'u', 'w', 'v', 'a'}) {
        const Ending ending = Call(channel, identity, PathOf(method), wire);
        const std::string what = absl::StrCat(method.full_name(), " by '", std::string(1, identity),
                                              "': ", ending.status.error_message());
        if (identity == ' ' || identity == 'x') {
          EXPECT_EQ(ending.status.error_code(), Code::UNAUTHENTICATED) << what;
        } else if (MayCall(identity, rule->second)) {
          EXPECT_FALSE(IsDenial(ending.status.error_code())) << what;
        } else {
          EXPECT_EQ(ending.status.error_code(), Code::PERMISSION_DENIED) << what;
        }
        if (IsDenial(ending.status.error_code())) {
          EXPECT_EQ(ending.messages, 0) << what;
        }
      }
    }
  }
  for (const auto& [name, rule] : AccessRules())
    EXPECT_THAT(seen, Contains(name)) << "no such method";
}

TEST_F(AccessTest, WithoutAPolicyEverybodyMayDoEverything) {
  TestServer server;
  const auto channel = server.NewChannel();
  for (const auto& [name, rule] : AccessRules()) {
    const MethodDescriptor& method = *DescriptorPool::generated_pool()->FindMethodByName(name);
    for (const char identity : {' ', 'x'}) {
      const Ending ending = Call(channel, identity, PathOf(method), WireFor(method, kModel));
      EXPECT_FALSE(IsDenial(ending.status.error_code())) << name;
    }
  }
}

TEST_F(AccessTest, WhatIsAllowedIsComputed) {
  TestServer server(Options());
  EXPECT_TRUE(Normalize(server, 'u').status.ok());
  grpc::ClientContext context;
  context.AddMetadata("authorization", BearerOf('u'));
  const v1::NormalizeRequest request = MakeRequest(kModel, {1, 64, 2, 2});
  v1::NormalizeResponse response;
  ASSERT_TRUE(server.stub().Normalize(&context, request, &response).ok());
  EXPECT_EQ(response.outputs(0).data().size(), request.inputs(0).data().size());
}

TEST_F(AccessTest, ARefusalIsTheSameWhetherOrNotThereIsSuchAModel) {
  TestServer server(Options());
  const Ending there = Normalize(server, 'w', kModel);
  const Ending gone = Normalize(server, 'w', "nobody_has_this");
  EXPECT_EQ(there.status.error_code(), gone.status.error_code());
  EXPECT_THAT(there.status.error_message(), HasSubstr("\"instance_norm_64\""));
  std::string words = there.status.error_message();
  words.replace(words.find(kModel), sizeof(kModel) - 1, "nobody_has_this");
  EXPECT_EQ(words, gone.status.error_message());
  EXPECT_EQ(server.Metric("normd_requests_total{model=\"instance_norm_64\""), 0);
}

TEST_F(AccessTest, OfTwoTokensNobodyCanSayWhichIsMeant) {
  TestServer server(Options());
  grpc::ClientContext context;
  context.AddMetadata("authorization", BearerOf('u'));
  context.AddMetadata("authorization", BearerOf('u'));
  v1::NormalizeResponse response;
  EXPECT_EQ(
      server.stub().Normalize(&context, MakeRequest(kModel, {1, 64, 2, 2}), &response).error_code(),
      Code::UNAUTHENTICATED);
}

// Each request of a ModelStreamInfer call is judged by the policy of its moment.
TEST_F(AccessTest, AStreamOfRequestsLosesItsRightWithThePolicy) {
  TestServer server(Options());
  const auto stub = inference::GRPCInferenceService::NewStub(server.NewChannel());
  grpc::ClientContext context;
  context.AddMetadata("authorization", BearerOf('u'));
  const auto stream = stub->ModelStreamInfer(&context);
  inference::ModelInferRequest request;
  request.set_model_name(kModel);
  auto& input = *request.add_inputs();
  input.set_name("x");
  input.set_datatype("FP32");
  for (const int size : {1, 64, 1, 1}) input.add_shape(size);
  request.add_raw_input_contents(std::string(64 * sizeof(float), '\0'));
  inference::ModelStreamInferResponse response;
  ASSERT_TRUE(stream->Write(request));
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.error_message(), "");
  request.set_model_name("rms_norm_4096");
  ASSERT_TRUE(stream->Write(request));
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_THAT(response.error_message(), HasSubstr("identity \"u\" has no right"));
  request.set_model_name(kModel);
  folder_.Write("policy", R"(role { name: "user" infer: "rms_*" }
                             identity { name: "u" role: "user" token: "u" })");
  ASSERT_TRUE(server.access().CheckFiles().ok());
  ASSERT_TRUE(stream->Write(request));
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_THAT(response.error_message(), HasSubstr("identity \"u\" has no right"));
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(AccessTest, AStreamThatMayNotBeIsEndedBeforeItsHeader) {
  TestServer server(Options());
  StreamClient nobody(server.stub());
  EXPECT_EQ(nobody.Finish().error_code(), Code::UNAUTHENTICATED)
      << "without a byte from the client";
  StreamClient viewer(server.stub(), [](grpc::ClientContext& context) {
    context.AddMetadata("authorization", BearerOf('v'));
  });
  EXPECT_EQ(viewer.Finish().error_code(), Code::PERMISSION_DENIED);
  server.WaitIdle();
}

TEST_F(AccessTest, HealthOfAModelIsForWhoMayHaveItDescribed) {
  TestServer server(Options());
  const auto channel = server.NewChannel();
  const auto check = [&](char identity, const std::string& service) {
    return Call(channel, identity, "/grpc.health.v1.Health/Check", HealthRequest(service))
        .status.error_code();
  };
  const std::string there = absl::StrCat("normd.v1.NormService/", kModel);
  for (const char identity : {'h', 'u', 'v'}) {
    EXPECT_EQ(check(identity, ""), Code::OK);
    EXPECT_EQ(check(identity, "normd.v1.NormService"), Code::OK);
  }
  for (const std::string& name :
       {there, std::string("normd.v1.NormService/gone"), std::string("/")}) {
    EXPECT_EQ(check('h', name), Code::PERMISSION_DENIED) << name;
    EXPECT_EQ(check('w', name), Code::PERMISSION_DENIED) << name;
  }
  EXPECT_EQ(check('u', there), Code::OK);
  EXPECT_EQ(check('v', "normd.v1.NormService/gone"), Code::NOT_FOUND);
}

TEST_F(AccessTest, AdminCallsAreTakenAtTheAdminAddressAlone) {
  TestServerOptions options = Options();
  options.admin = AdminCalls::kOfAdminListener;
  options.admin_listen = "127.0.0.1:0";
  TestServer server(std::move(options));
  v1::LoadModelRequest load;
  load.set_model(kModel);
  const std::string wire = load.SerializeAsString();
  for (const char* path : {"/normd.v1.NormService/LoadModel"}) {
    const Ending elsewhere = Call(server.NewChannel(), 'a', path, wire);
    EXPECT_EQ(elsewhere.status.error_code(), Code::PERMISSION_DENIED);
    EXPECT_THAT(elsewhere.status.error_message(), HasSubstr("--admin_listen"));
    const Ending there = Call(server.NewAdminChannel(), 'a', path, wire);
    EXPECT_TRUE(there.status.ok()) << there.status.error_message();
    EXPECT_EQ(Call(server.NewAdminChannel(), 'u', path, wire).status.error_code(),
              Code::PERMISSION_DENIED)
        << "the address gives no right";
  }
  EXPECT_TRUE(Normalize(server, 'u').status.ok());
}

TEST_F(AccessTest, TheRateIsToldToClientsAsATimeToRetry) {
  TestServer server(Options(R"(role { name: "user" infer: "*" }
      identity { name: "m" role: "user" token: "m"
                 limits { requests_per_second: 0.01 burst: 2 } })"));
  EXPECT_TRUE(Normalize(server, 'm').status.ok());
  EXPECT_TRUE(Normalize(server, 'm').status.ok());
  const Ending refused = Normalize(server, 'm');
  EXPECT_EQ(refused.status.error_code(), Code::RESOURCE_EXHAUSTED);
  int ms = 0;
  ASSERT_TRUE(absl::SimpleAtoi(refused.pushback, &ms)) << refused.pushback;
  EXPECT_GT(ms, 50'000);
  EXPECT_LE(ms, 100'000);
}

TEST_F(AccessTest, EachAdminCallAndEachDenialHasALineOfTheAuditLog) {
  TestServer server(Options());
  EXPECT_TRUE(Normalize(server, 'u').status.ok());
  server.WaitIdle();
  EXPECT_EQ(audit_lines(), 0U);
  v1::LoadModelRequest load;
  load.set_model(kModel);
  ASSERT_TRUE(
      Call(server.NewChannel(), 'a', "/normd.v1.NormService/LoadModel", load.SerializeAsString())
          .status.ok());
  server.WaitIdle();
  Normalize(server, 'w');
  server.WaitIdle();
  MutexLock lock(mutex_);
  ASSERT_EQ(lines_.size(), 2U);
  const auto admin = nlohmann::json::parse(lines_[0]);
  EXPECT_EQ(admin["audit"], "admin");
  EXPECT_EQ(admin["identity"], "a");
  EXPECT_EQ(admin["method"], "LoadModel");
  EXPECT_EQ(admin["model"], kModel);
  EXPECT_EQ(admin["code"], "OK");
  const auto denied = nlohmann::json::parse(lines_[1]);
  EXPECT_EQ(denied["audit"], "denied");
  EXPECT_EQ(denied["identity"], "w");
  EXPECT_EQ(denied["model"], kModel);
}

TEST_F(AccessTest, CallsCountWithTheirIdentity) {
  TestServer server(Options());
  Normalize(server, 'u');
  Normalize(server, 'w');
  Normalize(server, ' ');
  server.WaitIdle();
  EXPECT_EQ(server.Metric("normd_identity_calls_total{identity=\"u\",outcome=\"ok\"}"), 1);
  EXPECT_EQ(server.Metric("normd_identity_calls_total{identity=\"w\",outcome=\"denied\"}"), 1);
  EXPECT_EQ(server.Metric("normd_identity_calls_total{identity=\"\",outcome=\"denied\"}"), 1);
  EXPECT_EQ(server.Metric("normd_identity_input_bytes_total{identity=\"u\"}"), 64 * 4 * 4);
}

TEST_F(AccessTest, ThePathsOfTheMetricsPortHaveTheSameRules) {
  TestServer server(Options());
  struct Path {
    const char* path;
    std::string allowed;
  };
  for (const auto& [path, allowed] :
       std::vector<Path>{{"/metrics", "v"},
                         {"/", "v"},
                         {"/status.json", "v"},
                         {"/v2/health/live", "huwva"},
                         {"/v2/health/ready", "huwva"},
                         {"/v2/models/instance_norm_64/ready", "uv"},
                         {"/v2/models/instance_norm_64/versions/1/ready", "uv"},
                         {"/v2/models/gone/ready", "v"},
                         {"/v2/models/rms_norm_4096/ready", "wv"},
                         {"/v2/models/", "v"},
                         {"/other", "huwva"}}) {
    for (const char identity : {' ', 'x', 'h', 'u', 'w', 'v', 'a'}) {
      PathRequest request{path, "192.0.2.1:1", std::nullopt};
      const std::string bearer = BearerOf(identity);
      if (identity != ' ') request.authorization = bearer;
      const bool somebody = identity != ' ' && identity != 'x';
      const int expected = !somebody ? 401 : absl::StrContains(allowed, identity) ? 0 : 403;
      EXPECT_EQ(PathRefusal(request, server.authorizer()), expected)
          << path << " by '" << identity << "'";
    }
  }
}

}  // namespace
}  // namespace normd::testing
