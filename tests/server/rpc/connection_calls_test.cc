// How many calls a connection may have: idle streams take nothing from it, what is inside is
// bounded, and what computes nothing always passes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <string>
#include <thread>
#include <utility>

#include "server/accept/method_rights.h"
#include "tests/server/rpc/access_calls.h"
#include "tests/server/rpc/infer_requests.h"
#include "tests/server/rpc/stream_client.h"
#include "tests/server/rpc/test_server.h"

namespace normd::testing {
namespace {

using ::testing::HasSubstr;
using Code = grpc::StatusCode;

constexpr char kRefusal[] = "calls of this connection: 2 are inside, wanted at most so many";

v1::NormalizeRequest SmallRequest() { return MakeRequest("instance_norm_64", {1, 64, 2, 2}); }

void WaitUntilInside(TestServer& server, std::int64_t requests) {
  while (server.stop_parts().admission.inflight_requests() != requests) std::this_thread::yield();
}

TestServerOptions AtMostTwo() {
  TestServerOptions options;
  options.admission.max_connection_calls = 2;
  return options;
}

TEST(ConnectionCallsTest, IdleStreamsHoldUpNothing) {
  TestServer server(AtMostTwo());
  const auto channel = server.NewChannel();
  const auto stub = v1::NormService::NewStub(channel);
  std::deque<InferStreamClient> infer_streams;
  std::deque<StreamClient> streams;
  for (int i = 0; i < 50; ++i) {
    infer_streams.emplace_back(channel);
    streams.emplace_back(*stub);
  }
  for (int round = 0; round < 2; ++round) {
    const Ending ending = MakeCall(channel, "", kNormalize, SmallRequest().SerializeAsString());
    EXPECT_TRUE(ending.status.ok()) << ending.status.error_message();
    // Each of them in its turn has something inside, and is idle again.
    for (InferStreamClient& stream : infer_streams) {
      ASSERT_TRUE(stream.Send(ToInfer(SmallRequest())));
      const auto response = stream.Read();
      ASSERT_TRUE(response.has_value());
      EXPECT_EQ(response->error_message(), "");
      WaitUntilInside(server, 0);
    }
  }
}

TEST(ConnectionCallsTest, OneTooManyIsRefusedWithAHintAndOtherConnectionsAreNot) {
  TestServer server(AtMostTwo());
  const auto channel = server.NewChannel();
  const auto stub = v1::NormService::NewStub(channel);
  server.gate().Close();
  std::deque<AsyncCall> inside;
  for (int i = 0; i < 2; ++i) inside.emplace_back(*stub, SmallRequest());
  WaitUntilInside(server, 2);

  const std::string wire = SmallRequest().SerializeAsString();
  for (const auto& [path, message] :
       {std::pair(std::string(kNormalize), wire),
        std::pair(std::string("/inference.GRPCInferenceService/ModelInfer"),
                  ToInfer(SmallRequest()).SerializeAsString())}) {
    const Ending ending = MakeCall(channel, "", path, message);
    EXPECT_EQ(ending.status.error_code(), Code::RESOURCE_EXHAUSTED) << path;
    EXPECT_THAT(ending.status.error_message(), HasSubstr(kRefusal)) << path;
    EXPECT_EQ(ending.pushback, "100") << path;
  }
  StreamClient stream(*stub);
  ASSERT_TRUE(stream.SendHeader(SmallRequest()));
  const grpc::Status refused = stream.Finish();
  EXPECT_EQ(refused.error_code(), Code::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), HasSubstr(kRefusal));
  EXPECT_EQ(Pushback(stream.context()), "100");
  InferStreamClient infer_stream(channel);
  ASSERT_TRUE(infer_stream.Send(ToInfer(SmallRequest())));
  const auto response = infer_stream.Read();
  ASSERT_TRUE(response.has_value());
  EXPECT_THAT(response->error_message(), HasSubstr(kRefusal));
  EXPECT_EQ(server.Metric("normd_rejected_total{model=\"instance_norm_64\","
                          "reason=\"connection_calls\"}"),
            4);

  AsyncCall other(server.stub(), SmallRequest());  // On another connection.
  server.gate().Open();
  EXPECT_TRUE(other.Wait().ok()) << other.status.error_message();
  for (AsyncCall& call : inside) EXPECT_TRUE(call.Wait().ok()) << call.status.error_message();
  // The streams that were refused have room now.
  WaitUntilInside(server, 0);
  ASSERT_TRUE(infer_stream.Send(ToInfer(SmallRequest())));
  EXPECT_EQ(infer_stream.Read()->error_message(), "");
}

TEST(ConnectionCallsTest, WhatComputesNothingAlwaysPasses) {
  TestServer server(AtMostTwo());
  const auto channel = server.NewChannel();
  const auto stub = v1::NormService::NewStub(channel);
  server.gate().Close();
  std::deque<AsyncCall> inside;
  for (int i = 0; i < 2; ++i) inside.emplace_back(*stub, SmallRequest());
  WaitUntilInside(server, 2);
  int passed = 0;
  for (const auto* service : ServicesOf(channel, "")) {
    for (int i = 0; i < service->method_count(); ++i) {
      const auto& method = *service->method(i);
      if (AccessRules().at(method.full_name()).right == Right::kInfer) continue;
      const Ending ending =
          MakeCall(channel, "", PathOf(method), WireFor(method, "instance_norm_64"));
      EXPECT_NE(ending.status.error_code(), Code::RESOURCE_EXHAUSTED) << method.full_name();
      ++passed;
    }
  }
  EXPECT_GT(passed, 25);
  server.gate().Open();
  for (AsyncCall& call : inside) EXPECT_TRUE(call.Wait().ok()) << call.status.error_message();
}

}  // namespace
}  // namespace normd::testing
