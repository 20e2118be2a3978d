// Calls that wait: how they end in the queue, in which order they leave it, and when it is full.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <limits>
#include <thread>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "inference/grpc_service.grpc.pb.h"
#include "tests/server/rpc/infer_requests.h"
#include "tests/server/rpc/raw_client.h"
#include "tests/server/rpc/test_server.h"

namespace normd::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(NormServiceQueueTest, EndsARequestThatExpiresInTheQueueWithoutComputingIt) {
  TestServer server;
  StalledCall first(server, MakeRequest("instance_norm_64", {1, 64, 16}));
  const double held_by_first = server.Metric("normd_inflight_bytes");

  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(30));
  v1::NormalizeResponse response;
  const grpc::Status late =
      server.stub().Normalize(&context, MakeRequest("instance_norm_64", {1, 64, 16}), &response);
  EXPECT_EQ(late.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  // The client's clock runs out before the server's, which began when the request arrived.
  while (server.Metric("normd_inflight_bytes") > held_by_first) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  server.gate().Open();
  EXPECT_TRUE(first.Wait().ok());
  server.WaitIdle();
  EXPECT_EQ(server.Metric("normd_batch_requests_sum{model=\"instance_norm_64\"}"), 1);
}

TEST(NormServiceQueueTest, EndsARequestAtItsQueueTimeoutWhileTheLaneIsBusy) {
  TestServer server;
  StalledCall first(server, MakeRequest("instance_norm_64", {1, 64, 16}));

  v1::NormalizeRequest request = MakeRequest("instance_norm_64", {1, 64, 16});
  request.set_queue_timeout_ns(1'000'000);
  const grpc::Status late = Normalize(server, request);
  EXPECT_EQ(late.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_THAT(late.error_message(), HasSubstr("queue_timeout_ns: no lane was free for 1000000 ns"));
  // In the words of the other protocol, which has it in microseconds.
  const grpc::Status as_parameter = Infer(server, ToInfer(request));
  EXPECT_EQ(as_parameter.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_THAT(as_parameter.error_message(),
              HasSubstr("parameters[\"timeout\"]: no lane was free for 1000 us"));
  server.gate().Open();
  EXPECT_TRUE(first.Wait().ok());
  request.set_queue_timeout_ns(std::numeric_limits<std::int64_t>::max());
  EXPECT_TRUE(Normalize(server, request).ok());
}

TEST(NormServiceQueueTest, ComputesAHigherPriorityFirst) {
  TestServerOptions options;
  options.queue.limits.max_rows = 64;  // One request.
  TestServer server(options);
  StalledCall first(server, MakeRequest("instance_norm_64", {1, 64, 16}));
  v1::NormalizeRequest request = MakeRequest("instance_norm_64", {1, 64, 16});
  request.set_priority(v1::PRIORITY_LOW);
  AsyncCall low(server.stub(), request);
  while (server.queue().waiting_requests() < 1) std::this_thread::yield();
  request.set_priority(v1::PRIORITY_HIGH);
  AsyncCall high(server.stub(), request);
  while (server.queue().waiting_requests() < 2) std::this_thread::yield();
  server.gate().Open();
  ASSERT_TRUE(low.Wait().ok());
  ASSERT_TRUE(high.Wait().ok());
  EXPECT_LT(high.response.batch().id(), low.response.batch().id());
}

TEST(NormServiceQueueTest, TakesACancelledRequestOutOfTheQueue) {
  TestServer server;
  StalledCall first(server, MakeRequest("instance_norm_64", {1, 64, 16}));

  {
    AsyncCall second(server.stub(), MakeRequest("instance_norm_64", {1, 64, 16}));
    while (server.queue().waiting_requests() == 0) std::this_thread::yield();
    second.context.TryCancel();
    EXPECT_EQ(second.Wait().error_code(), grpc::StatusCode::CANCELLED);
  }
  // The lane is still busy: only the cancellation can have taken it out.
  while (server.queue().waiting_requests() != 0) std::this_thread::yield();
  server.gate().Open();
  EXPECT_TRUE(first.Wait().ok());
  server.WaitIdle();
  EXPECT_EQ(server.Metric("normd_batch_requests_sum{model=\"instance_norm_64\"}"), 1);
  EXPECT_EQ(server.Metric("normd_inflight_bytes"), 0);
}

TEST(NormServiceQueueTest, SurvivesCancellationAtAnyMoment) {
  TestServer server;
  for (int round = 0; round < 300; ++round) {
    AsyncCall call(server.stub(), MakeRequest("instance_norm_64", {1, 64, 16}));
    const auto moment = std::chrono::steady_clock::now() + round * std::chrono::microseconds(5);
    while (std::chrono::steady_clock::now() < moment) {
    }
    call.context.TryCancel();
    const grpc::Status& status = call.Wait();
    ASSERT_TRUE(status.ok() || status.error_code() == grpc::StatusCode::CANCELLED)
        << status.error_message();
  }
  server.WaitIdle();
  EXPECT_EQ(server.Metric("normd_inflight_bytes"), 0);
}

TEST(NormServiceQueueTest, RefusesWithARetryHintWhenTheQueueIsFull) {
  TestServerOptions options;
  options.queue.max_queue_requests = 1;
  TestServer server(options);
  StalledCall taken(server, MakeRequest("instance_norm_64", {1, 64, 16}));
  AsyncCall waiting(server.stub(), MakeRequest("instance_norm_64", {1, 64, 16}));
  while (server.queue().waiting_requests() == 0) std::this_thread::yield();

  AsyncCall refused(server.stub(), MakeRequest("instance_norm_64", {1, 64, 16}));
  EXPECT_EQ(refused.Wait().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.status.error_message(), HasSubstr("queue"));
  EXPECT_EQ(Pushback(refused.context), "100");
  server.gate().Open();
  EXPECT_TRUE(taken.Wait().ok());
  EXPECT_TRUE(waiting.Wait().ok());
  EXPECT_EQ(Pushback(waiting.context), "");
  server.WaitIdle();
  EXPECT_EQ(server.Metric("normd_inflight_bytes"), 0);
}

TEST(NormServiceQueueTest, RefusesWithARetryHintWhenTheByteBudgetIsSpent) {
  TestServerOptions options;
  options.admission.max_inflight_bytes = 3 * 64 * 16 * 4;
  TestServer server(options);
  StalledCall taken(server, MakeRequest("instance_norm_64", {1, 64, 16}));
  AsyncCall refused(server.stub(), MakeRequest("instance_norm_64", {1, 64, 16}));
  EXPECT_EQ(refused.Wait().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.status.error_message(), AllOf(HasSubstr("8192"), HasSubstr("4096")));
  EXPECT_EQ(Pushback(refused.context), "100");
  // More than the whole budget: no retry will help.
  const grpc::Status never = Normalize(server, MakeRequest("instance_norm_64", {2, 64, 16}));
  EXPECT_EQ(never.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  server.gate().Open();
  EXPECT_TRUE(taken.Wait().ok());
}

}  // namespace
}  // namespace normd::testing
