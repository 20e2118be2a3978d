// Calls with much metadata: each is refused alone, whatever its method.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/accept/method_rights.h"
#include "tests/server/rpc/access_calls.h"
#include "tests/server/rpc/infer_requests.h"
#include "tests/server/rpc/raw_client.h"
#include "tests/server/rpc/stream_client.h"
#include "tests/server/rpc/test_server.h"
#include "tests/support/threads.h"

namespace normd::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Code = grpc::StatusCode;

constexpr std::int64_t kMaxBytes = 16 << 10;  // The default.

std::string Wire() { return MakeRequest("instance_norm_64", {1, 64, 2, 2}).SerializeAsString(); }

// A token of so many bytes beside what gRPC sends.
auto WithToken(std::size_t bytes) {
  return [bytes](grpc::ClientContext& context) {
    context.AddMetadata("x-token", std::string(bytes, 't'));
  };
}

TEST(MetadataTest, EveryMethodRefusesTooMuchByNameAndTheConnectionsOtherCallsGoOn) {
  TestServer server;
  const auto channel = server.NewChannel();
  const auto stub = v1::NormService::NewStub(channel);
  const v1::NormalizeRequest request = MakeRequest("instance_norm_64", {1, 64, 2, 2});
  StreamClient neighbour(*stub);
  ASSERT_TRUE(neighbour.SendHeader(request));
  ASSERT_TRUE(neighbour.Read().has_value());
  int methods = 0;
  for (const auto* service : ServicesOf(channel, "")) {
    for (int i = 0; i < service->method_count(); ++i) {
      const std::string path = PathOf(*service->method(i));
      const std::string wire = WireFor(*service->method(i), "instance_norm_64");
      for (const std::size_t bytes : {kMaxBytes, 2 * kMaxBytes, 5 * kMaxBytes}) {
        const Ending ending = MakeCall(channel, WithToken(bytes), path, wire);
        EXPECT_EQ(ending.status.error_code(), Code::INVALID_ARGUMENT)
            << path << ": " << ending.status.error_message();
        EXPECT_THAT(ending.status.error_message(),
                    AllOf(HasSubstr("metadata: "), HasSubstr("\"x-token\""),
                          HasSubstr(absl::StrCat("wanted at most ", kMaxBytes))))
            << path;
        EXPECT_EQ(ending.pushback, "") << "no retry helps";
      }
      ++methods;
    }
  }
  EXPECT_GT(methods, 30);
  ASSERT_TRUE(neighbour.SendChunk(request.inputs(0).data()));
  neighbour.HalfClose();
  EXPECT_TRUE(neighbour.Finish().ok());
  EXPECT_TRUE(MakeCall(channel, "", kNormalize, Wire()).status.ok());
}

// An entry costs gRPC far more than what it may take on the wire, until a message comes.
TEST(MetadataTest, TooManyEntriesAreRefusedBeforeTheMessageComes) {
  TestServer server;
  const auto stub = v1::NormService::NewStub(server.NewChannel());
  for (const int count : {100, 1000, 2500}) {
    StreamClient stream(*stub, [count](grpc::ClientContext& context) {
      for (int i = 0; i < count; ++i) context.AddMetadata("x", "");
    });
    if (count == 100) {
      EXPECT_TRUE(stream.SendHeader(MakeRequest("instance_norm_64", {1, 64, 2, 2})));
      EXPECT_TRUE(stream.Read().has_value());
      continue;
    }
    const grpc::Status refused = stream.Finish();
    EXPECT_EQ(refused.error_code(), Code::INVALID_ARGUMENT);
    EXPECT_THAT(refused.error_message(), HasSubstr("entries, wanted at most 256"));
  }
}

// HTTP/2 counts names, values and 32 bytes for each; gRPC tells of its own headers too.
TEST(MetadataTest, TheLimitIsExact) {
  TestServer server;
  const auto channel = server.NewChannel();
  // By the refusal of one that is far too large: the rest of the metadata is the same.
  const auto refusal = [&](std::size_t bytes) {
    return MakeCall(channel, WithToken(bytes), kNormalize, Wire()).status;
  };
  const std::string said = refusal(2 * kMaxBytes).error_message();
  std::int64_t whole = 0;
  ASSERT_EQ(sscanf(said.c_str(), "metadata: %ld bytes", &whole), 1) << said;
  const auto beside = static_cast<std::size_t>(whole - 2 * kMaxBytes);
  const std::size_t largest = kMaxBytes - beside;
  EXPECT_TRUE(refusal(largest).ok()) << refusal(largest).error_message();
  EXPECT_EQ(refusal(largest + 1).error_code(), Code::INVALID_ARGUMENT);
  // Many small entries count like a large one.
  const auto many = [&](std::size_t entries, std::size_t bytes) {
    return MakeCall(
               channel,
               [&](grpc::ClientContext& context) {
                 for (std::size_t i = 0; i < entries; ++i) {
                   context.AddMetadata("x", std::string(i == 0 ? bytes : 0, 't'));
                 }
               },
               kNormalize, Wire())
        .status;
  };
  const std::size_t room = largest + 32 + std::string("x-token").size() - 100 * 33;
  EXPECT_TRUE(many(100, room).ok()) << many(100, room).error_message();
  EXPECT_EQ(many(100, room + 1).error_code(), Code::INVALID_ARGUMENT);
}

// Metadata is no message: what its calls have brought must not look as if it were still to come.
TEST(MetadataTest, CountsAsDelivered) {
  DeliveredCounts counts;
  for (const std::int64_t bytes : {0, 100, 8 << 10}) counts.AddMetadata(bytes);
  EXPECT_EQ(counts.bytes.load(), 0) << "each message has an allowance of so much";
  counts.AddMetadata(20 << 10);
  EXPECT_EQ(counts.bytes.load(), 12 << 10);
}

// How many calls a connection may have: idle streams take nothing from it, what is inside is
// bounded, and what computes nothing always passes.

constexpr char kRefusal[] = "calls of this connection: 2 are inside, wanted at most so many";

v1::NormalizeRequest SmallRequest() { return MakeRequest("instance_norm_64", {1, 64, 2, 2}); }

void WaitUntilInside(TestServer& server, std::int64_t requests) {
  WaitUntil([&] { return server.stop_parts().admission.inflight_requests() == requests; });
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

TEST(ConnectionCallsTest, OneTooManyIsRefusedUnlessItComputesNothingOrIsOfAnotherConnection) {
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

  int passed = 0;
  for (const auto* service : ServicesOf(channel, "")) {
    for (int i = 0; i < service->method_count(); ++i) {
      const auto& method = *service->method(i);
      if (AccessRules().at(method.full_name()).right == Right::kInfer) continue;
      const Ending ending = MakeCall(channel, "", PathOf(method), WireFor(method, "nothing"));
      EXPECT_NE(ending.status.error_code(), Code::RESOURCE_EXHAUSTED) << method.full_name();
      ++passed;
    }
  }
  EXPECT_GT(passed, 25);

  AsyncCall other(server.stub(), SmallRequest());  // On another connection.
  server.gate().Open();
  EXPECT_TRUE(other.Wait().ok()) << other.status.error_message();
  for (AsyncCall& call : inside) EXPECT_TRUE(call.Wait().ok()) << call.status.error_message();
  // The streams that were refused have room now.
  WaitUntilInside(server, 0);
  ASSERT_TRUE(infer_stream.Send(ToInfer(SmallRequest())));
  EXPECT_EQ(infer_stream.Read()->error_message(), "");
}

}  // namespace
}  // namespace normd::testing
