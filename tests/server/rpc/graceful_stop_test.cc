#include "server/rpc/graceful_stop.h"

#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "inference/grpc_service.grpc.pb.h"
#include "tests/server/rpc/raw_client.h"
#include "tests/server/rpc/stream_client.h"
#include "tests/server/rpc/test_server.h"
#include "tests/support/threads.h"

namespace normd::testing {
namespace {

using Outcome = GracefulStop::Outcome;

constexpr Duration kLong = std::chrono::hours(1);

// A server, and its stop on a thread of its own.
struct Stopping {
  explicit Stopping(GracefulStopOptions options)
      : stop(options, server.stop_parts()), thread([this] { outcome = stop.Run(); }) {}
  ~Stopping() {
    if (thread.joinable()) {
      stop.Signal();
      stop.Signal();
      thread.join();
    }
  }
  Outcome Join() {
    thread.join();
    return *outcome;
  }
  // Waits until the server refuses calls; fails if it answers them in another way than it should.
  void WaitForRefusal() {
    for (;;) {
      grpc::ClientContext context;
      v1::GetServerInfoResponse info;
      const grpc::Status status = server.stub().GetServerInfo(&context, {}, &info);
      if (status.error_code() == grpc::StatusCode::UNAVAILABLE) return;
      ASSERT_TRUE(status.ok()) << status.error_message();
    }
  }

  TestServer server;
  GracefulStop stop;
  std::optional<Outcome> outcome;
  std::thread thread;
};

v1::NormalizeRequest SomeRequest() { return MakeRequest("instance_norm_64", {1, 64, 16}); }

TEST(GracefulStopTest, ServesOnWithHealthNotServingWhileItIsALameDuck) {
  Stopping stopping({.lame_duck = kLong, .drain_timeout = kLong});
  RawStream watch(stopping.server.NewChannel(), "/grpc.health.v1.Health/Watch",
                  HealthRequest("normd.v1.NormService/instance_norm_64"));
  ASSERT_EQ(ParseHealth(watch.Read().value_or("")), Health::kServing);
  stopping.stop.Signal();
  ASSERT_EQ(ParseHealth(watch.Read().value_or("")), Health::kNotServing);
  for (int i = 0; i < 20; ++i) {
    AsyncCall call(stopping.server.stub(), SomeRequest());
    ASSERT_TRUE(call.Wait().ok()) << call.status.error_message();
  }
  EXPECT_EQ(stopping.server.Metric("normd_ready"), 0);
}

TEST(GracefulStopTest, FinishesAllThatWasAcceptedAndRefusesTheRest) {
  Stopping stopping({.lame_duck = Duration(0), .drain_timeout = kLong});
  TestServer& server = stopping.server;
  StalledCall in_lane(server, SomeRequest());
  AsyncCall in_queue(server.stub(), SomeRequest());
  WaitUntil([&] { return server.queue().waiting_requests() != 0; });

  stopping.stop.Signal();
  stopping.WaitForRefusal();
  AsyncCall late(server.stub(), SomeRequest());
  EXPECT_EQ(late.Wait().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(server.queue().waiting_requests(), 1);

  server.gate().Open();
  EXPECT_TRUE(in_lane.Wait().ok()) << in_lane.status.error_message();
  EXPECT_TRUE(in_queue.Wait().ok()) << in_queue.status.error_message();
  EXPECT_EQ(stopping.Join(), Outcome::kClean);
}

TEST(GracefulStopTest, SaysThatItIsLiveAndNotReadyWhileItDrains) {
  Stopping stopping({.lame_duck = Duration(0), .drain_timeout = kLong});
  StalledCall in_lane(stopping.server, SomeRequest());
  stopping.stop.Signal();
  stopping.WaitForRefusal();
  const auto stub = inference::GRPCInferenceService::NewStub(stopping.server.NewChannel());
  const auto ask = [&](auto method, const auto& request, auto& answer) {
    grpc::ClientContext context;
    return ((*stub).*method)(&context, request, &answer);
  };
  using Stub = inference::GRPCInferenceService::Stub;
  inference::ServerLiveResponse live;
  EXPECT_TRUE(ask(&Stub::ServerLive, inference::ServerLiveRequest(), live).ok());
  EXPECT_TRUE(live.live());
  inference::ServerReadyResponse ready;
  EXPECT_TRUE(ask(&Stub::ServerReady, inference::ServerReadyRequest(), ready).ok());
  EXPECT_FALSE(ready.ready());
  inference::ModelReadyRequest wanted;
  wanted.set_name("instance_norm_64");
  inference::ModelReadyResponse model;
  EXPECT_TRUE(ask(&Stub::ModelReady, wanted, model).ok());
  EXPECT_FALSE(model.ready());
  inference::ServerMetadataResponse metadata;
  EXPECT_EQ(ask(&Stub::ServerMetadata, inference::ServerMetadataRequest(), metadata).error_code(),
            grpc::StatusCode::UNAVAILABLE);
  stopping.server.gate().Open();
  EXPECT_TRUE(in_lane.Wait().ok());
}

TEST(GracefulStopTest, FinishesAStreamThatWasAccepted) {
  Stopping stopping({.lame_duck = Duration(0), .drain_timeout = kLong});
  const v1::NormalizeRequest request = MakeRequest("rms_norm_4096", {3, 4096});
  const absl::string_view data = request.inputs(0).data();
  StreamClient client(stopping.server.stub());
  ASSERT_TRUE(client.SendHeader(request));
  ASSERT_TRUE(client.Read()->has_header());
  ASSERT_TRUE(client.SendChunk(data.substr(0, 10000)));
  stopping.stop.Signal();
  stopping.WaitForRefusal();
  ASSERT_TRUE(client.SendChunk(data.substr(10000)));
  client.HalfClose();
  std::size_t bytes = 0;
  while (const auto message = client.Read()) bytes += message->chunk().size();
  const grpc::Status status = client.Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(bytes, data.size());
  EXPECT_EQ(stopping.Join(), Outcome::kClean);
}

TEST(GracefulStopTest, EndsCleanlyThoughAWatchIsOpen) {
  Stopping stopping({.lame_duck = Duration(0), .drain_timeout = kLong});
  RawStream watch(stopping.server.NewChannel(), "/grpc.health.v1.Health/Watch", HealthRequest(""));
  ASSERT_EQ(ParseHealth(watch.Read().value_or("")), Health::kServing);
  stopping.stop.Signal();
  EXPECT_EQ(stopping.Join(), Outcome::kClean);
}

TEST(GracefulStopTest, ASecondSignalEndsTheLameDuckCleanlyWhenNothingIsInside) {
  Stopping stopping({.lame_duck = kLong, .drain_timeout = kLong});
  stopping.stop.Signal();
  stopping.stop.Signal();
  EXPECT_EQ(stopping.Join(), Outcome::kClean);
}

TEST(GracefulStopTest, ASecondSignalAnswersWhatWaitsWithUnavailable) {
  Stopping stopping({.lame_duck = Duration(0), .drain_timeout = kLong});
  TestServer& server = stopping.server;
  StalledCall in_lane(server, SomeRequest());
  AsyncCall in_queue(server.stub(), SomeRequest());
  WaitUntil([&] { return server.queue().waiting_requests() != 0; });
  stopping.stop.Signal();
  stopping.WaitForRefusal();
  stopping.stop.Signal();
  EXPECT_EQ(in_queue.Wait().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(stopping.Join(), Outcome::kAborted);
  server.gate().Open();
  in_lane.Wait();
}

TEST(GracefulStopTest, TheDrainTimeoutEndsIt) {
  Stopping stopping({.lame_duck = Duration(0), .drain_timeout = std::chrono::milliseconds(20)});
  TestServer& server = stopping.server;
  StalledCall in_lane(server, SomeRequest());
  stopping.stop.Signal();
  EXPECT_EQ(stopping.Join(), Outcome::kAborted);
  server.gate().Open();
  in_lane.Wait();
}

TEST(GracefulStopTest, LosesNothingAcceptedUnderLoad) {
  Stopping stopping({.lame_duck = std::chrono::milliseconds(50), .drain_timeout = kLong});
  std::atomic<int> answered{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < 4; ++i) {
    clients.emplace_back([&] {
      const auto stub = v1::NormService::NewStub(stopping.server.NewChannel());
      for (;;) {
        grpc::ClientContext context;
        v1::NormalizeResponse response;
        const grpc::Status status = stub->Normalize(&context, SomeRequest(), &response);
        if (!status.ok()) {
          EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
          return;
        }
        ++answered;
      }
    });
  }
  WaitUntil([&] { return answered >= 100; });
  stopping.stop.Signal();
  EXPECT_EQ(stopping.Join(), Outcome::kClean);
  for (std::thread& client : clients) client.join();
  auto calls = [&](const std::string& code) {
    return stopping.server.Metric(
        absl::StrCat("normd_requests_total{model=\"instance_norm_64\",version=\"1\","
                     "method=\"Normalize\",code=\"",
                     code, "\"}"));
  };
  EXPECT_EQ(calls("OK"), answered) << "what the server computed is what the clients got";
  EXPECT_EQ(calls("CANCELLED"), 0);
}

}  // namespace
}  // namespace normd::testing
