// ModelStreamInfer: requests in a row on one call.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "inference/grpc_service.grpc.pb.h"
#include "server/rpc/infer_stream.h"
#include "tests/server/rpc/infer_requests.h"
#include "tests/server/rpc/test_server.h"
#include "tests/support/threads.h"

namespace normd::testing {
namespace {

using ::testing::HasSubstr;
using Code = grpc::StatusCode;

inference::ModelInferRequest Numbered(int number, std::vector<std::int64_t> shape) {
  inference::ModelInferRequest request =
      ToInfer(MakeRequest("instance_norm_64", shape, static_cast<std::uint64_t>(number)));
  request.set_id(absl::StrCat(number));
  return request;
}

TEST(InferStreamTest, AnswersInOrderWithTheBitsOfModelInferAndGoesOnAfterErrors) {
  TestServerOptions options;
  options.cpu_lanes = 3;
  TestServer server(options);
  InferStreamClient stream(server.NewChannel());
  constexpr int kRequests = 200;
  std::vector<inference::ModelInferRequest> requests;
  std::mt19937_64 random(17);
  for (int i = 0; i < kRequests; ++i) {
    requests.push_back(Numbered(i, {1, 64, static_cast<std::int64_t>(1 + random() % 40), 8}));
    switch (i % 7) {
      case 3: requests.back().set_model_name("nothing"); break;
      case 5: requests.back().mutable_raw_input_contents(0)->pop_back(); break;
      default: break;
    }
  }
  std::thread sender([&] {
    for (const auto& request : requests) ASSERT_TRUE(stream.Send(request));
    stream.HalfClose();
  });
  for (int i = 0; i < kRequests; ++i) {
    const auto response = stream.Read();
    ASSERT_TRUE(response.has_value()) << i;
    EXPECT_EQ(response->infer_response().id(), absl::StrCat(i));
    if (i % 7 == 3) {
      EXPECT_THAT(response->error_message(), HasSubstr("model: nothing"));
    } else if (i % 7 == 5) {
      EXPECT_THAT(response->error_message(), HasSubstr("data: "));
    } else {
      EXPECT_EQ(response->error_message(), "");
      EXPECT_TRUE(response->infer_response().parameters().at("triton_final_response").bool_param());
      inference::ModelInferResponse wanted;
      ASSERT_TRUE(Infer(server, requests[static_cast<std::size_t>(i)], &wanted).ok());
      EXPECT_TRUE(response->infer_response().raw_output_contents(0) ==
                  wanted.raw_output_contents(0));
    }
  }
  sender.join();
  EXPECT_TRUE(stream.Finish().ok());
  server.WaitIdle();
  EXPECT_EQ(server.Metric("normd_inflight_bytes"), 0);
  EXPECT_EQ(server.Metric("normd_requests_total{model=\"\",version=\"\","
                          "method=\"ModelStreamInfer\",code=\"NOT_FOUND\"}"),
            29);
}

TEST(InferStreamTest, IsNotReadWhileAsManyRequestsAreInsideAsMayBe) {
  TestServer server;
  server.gate().Close();
  InferStreamClient stream(server.NewChannel());
  constexpr int kRequests = static_cast<int>(kMaxInferStreamRequests) + 10;
  std::thread sender([&] {
    for (int i = 0; i < kRequests; ++i) ASSERT_TRUE(stream.Send(Numbered(i, {1, 64, 64, 64})));
    stream.HalfClose();
  });
  server.gate().WaitForStalled(1);
  const auto inside = [&] { return server.stop_parts().admission.inflight_requests(); };
  WaitUntil([&] { return inside() >= static_cast<std::int64_t>(kMaxInferStreamRequests); });
  server.gate().Open();
  for (int i = 0; i < kRequests; ++i) {
    const auto response = stream.Read();
    ASSERT_TRUE(response.has_value());
    EXPECT_EQ(response->error_message(), "");
    EXPECT_LE(inside(), static_cast<std::int64_t>(kMaxInferStreamRequests) + 1);
  }
  sender.join();
  EXPECT_TRUE(stream.Finish().ok());
}

TEST(InferStreamTest, ARequestThatFindsNoRoomIsRefusedAlone) {
  TestServerOptions options;
  options.admission.max_inflight_requests = 2;
  TestServer server(options);
  server.gate().Close();
  InferStreamClient stream(server.NewChannel());
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(stream.Send(Numbered(i, {1, 64, 64, 64})));
  server.gate().WaitForStalled(1);
  // The third has been judged when it is counted as refused.
  const std::string rejected =
      "normd_rejected_total{model=\"instance_norm_64\",reason=\"inflight_requests\"}";
  WaitUntil([&] { return server.Metric(rejected) >= 1; });
  server.gate().Open();
  EXPECT_EQ(stream.Read()->error_message(), "");
  EXPECT_EQ(stream.Read()->error_message(), "");
  EXPECT_THAT(stream.Read()->error_message(), HasSubstr("wanted 1 more, 0 of 2 are free"));
  stream.HalfClose();
  EXPECT_TRUE(stream.Finish().ok());
}

TEST(InferStreamTest, NothingIsLeftOfACancelledStream) {
  TestServer server;
  server.gate().Close();
  InferStreamClient stream(server.NewChannel());
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(stream.Send(Numbered(i, {1, 64, 64, 64})));
  server.gate().WaitForStalled(1);
  stream.Cancel();
  EXPECT_EQ(stream.Finish().error_code(), Code::CANCELLED);
  server.gate().Open();
  server.WaitIdle();
  EXPECT_EQ(server.Metric("normd_inflight_bytes"), 0);
}

TEST(InferStreamTest, AStopDoesNotWaitForAQuietStreamAndTellsTheOthersRequests) {
  TestServer server;
  InferStreamClient stream(server.NewChannel());
  ASSERT_TRUE(stream.Send(Numbered(1, {1, 64, 4, 4})));
  EXPECT_EQ(stream.Read()->error_message(), "");
  server.stop_parts().admission.Close();
  ASSERT_TRUE(stream.Send(Numbered(2, {1, 64, 4, 4})));
  EXPECT_THAT(stream.Read()->error_message(), HasSubstr("the server is shutting down"));
  // Again and again, as a stop does: the client may have its response before the server has heard
  // that it was sent, and until then the stream is not quiet.
  std::atomic<bool> ended = false;
  std::thread stop([&] {
    while (!ended) {
      server.stop_parts().active.AbortQuietStreams(kNever, absl::UnavailableError("stopping"));
      std::this_thread::yield();
    }
  });
  const grpc::Status status = stream.Finish();
  ended = true;
  stop.join();
  EXPECT_EQ(status.error_code(), Code::UNAVAILABLE);
  EXPECT_EQ(status.error_message(), "stopping");
  server.WaitIdle();
}

TEST(InferStreamTest, AnEmptyStreamEndsWell) {
  TestServer server;
  InferStreamClient stream(server.NewChannel());
  stream.HalfClose();
  EXPECT_TRUE(stream.Finish().ok());
}

}  // namespace
}  // namespace normd::testing
