#include "server/rpc/norm_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/retry_after.h"
#include "operations/kernel_program.h"
#include "tests/server/rpc/judged_outputs.h"
#include "tests/server/rpc/raw_client.h"
#include "tests/server/rpc/test_server.h"
#include "tests/support/threads.h"

namespace normd::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(NormServiceTest, AnswersWithTheNormAndTheStagesAndTheBatch) {
  TestServer server;
  const v1::NormalizeRequest request = MakeRequest("group_norm_64_8", {2, 64, 5, 7});
  v1::NormalizeResponse response;
  const grpc::Status status = Normalize(server, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();

  EXPECT_EQ(response.model(), "group_norm_64_8");
  EXPECT_EQ(response.version(), 1);
  EXPECT_GT(response.stages().decode_ns(), 0);
  EXPECT_GT(response.stages().queue_ns(), 0);
  EXPECT_GT(response.stages().compute_ns(), 0);
  EXPECT_EQ(response.stages().copy_in_ns(), 0);
  EXPECT_EQ(response.batch().requests(), 1);
  EXPECT_EQ(response.batch().bytes(), 2 * 64 * 5 * 7 * 4);
  EXPECT_EQ(response.batch().lane(), "cpu:0");
  ASSERT_EQ(response.outputs_size(), 1);
  const v1::Tensor& output = response.outputs(0);
  EXPECT_EQ(output.dtype(), v1::FLOAT32);
  EXPECT_THAT(output.shape(), ElementsAre(2, 64, 5, 7));

  ExpectRight(server, request, response);
}

TEST(NormServiceTest, AnswersAnEmptyTensorWithAnEmptyTensor) {
  TestServer server;
  v1::NormalizeResponse response;
  const grpc::Status status =
      Normalize(server, MakeRequest("instance_norm_64", {0, 64, 8, 8}), &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(response.outputs_size(), 1);
  EXPECT_THAT(response.outputs(0).shape(), ElementsAre(0, 64, 8, 8));
  EXPECT_THAT(response.outputs(0).data(), IsEmpty());
}

TEST(NormServiceTest, AnswersAThousandMixedRequestsAtOnceAsEachAlone) {
  TestServerOptions options;
  options.cpu_lanes = 3;
  TestServer server(options);
  std::vector<v1::NormalizeRequest> requests;
  for (int i = 0; i < 1000; ++i) {
    const std::int64_t n = 1 + i % 5;
    const std::int64_t s = 1 + (i * 7) % 61;
    const std::uint64_t seed = static_cast<std::uint64_t>(i) + 1;
    switch (i % 5) {
      case 0: requests.push_back(MakeRequest("instance_norm_64", {n, 64, s, 3}, seed)); break;
      case 1: requests.push_back(MakeRequest("group_norm_64_8", {n, 64, s}, seed)); break;
      case 2: requests.push_back(MakeRequest("layer_norm_1024", {n, 1024}, seed)); break;
      case 3: requests.push_back(MakeRequest("batch_norm_64", {n, 64, s, 2}, seed)); break;
      default: requests.push_back(MakeRequest("group_norm_320_32_silu_last", {n, s, 320}, seed));
    }
  }
  std::vector<std::string> alone;
  for (const v1::NormalizeRequest& request : requests) {
    v1::NormalizeResponse response;
    const grpc::Status status = Normalize(server, request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    ASSERT_EQ(response.batch().requests(), 1);
    alone.push_back(response.outputs(0).data());
  }

  std::vector<std::unique_ptr<AsyncCall>> calls;
  server.gate().Close();
  for (const v1::NormalizeRequest& request : requests) {
    calls.push_back(std::make_unique<AsyncCall>(server.stub(), request));
  }
  server.gate().WaitForStalled(1);
  server.gate().Open();
  std::int64_t in_company = 0;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    ASSERT_TRUE(calls[i]->Wait().ok()) << calls[i]->status.error_message();
    ASSERT_TRUE(calls[i]->response.outputs(0).data() == alone[i]) << "request " << i;
    in_company += calls[i]->response.batch().requests() > 1 ? 1 : 0;
  }
  EXPECT_GT(in_company, 500) << "the requests were to share batches";
}

TEST(NormServiceTest, ComputesOnTheThreadThatReceivedWhatIsSmallWithTheSameBits) {
  TestServerOptions options;
  options.queue.max_inline_bytes = 64 << 10;
  TestServer server(options);
  server.gate().Close();  // No lane computes.
  std::vector<v1::NormalizeRequest> requests;
  std::vector<v1::NormalizeResponse> responses;
  for (const std::int64_t samples : {0, 1, 3}) {
    requests.push_back(MakeRequest("group_norm_64_8", {samples, 64, 5, 7}));
    ASSERT_TRUE(Normalize(server, requests.back(), &responses.emplace_back()).ok());
    EXPECT_THAT(responses.back().batch().lane(), HasSubstr("inline"));
    EXPECT_EQ(responses.back().batch().requests(), 1);
  }
  AsyncCall large(server.stub(), MakeRequest("group_norm_64_8", {8, 64, 8, 8}));
  server.gate().WaitForStalled(1);
  server.gate().Open();
  EXPECT_TRUE(large.Wait().ok());
  server.WaitIdle();
  EXPECT_EQ(server.Metric("normd_inflight_bytes"), 0);

  TestServer lanes_only;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    v1::NormalizeResponse response;
    ASSERT_TRUE(Normalize(lanes_only, requests[i], &response).ok());
    EXPECT_EQ(response.outputs(0).data(), responses[i].outputs(0).data());
    EXPECT_THAT(response.batch().lane(), Not(HasSubstr("inline")));
  }
}

TEST(NormServiceTest, FinishesARequestOnTheModelThatIsUnloadedMeanwhile) {
  TestServer server;
  StalledCall call(server, MakeRequest("instance_norm_64", {1, 64, 16}));

  grpc::ClientContext context;
  v1::UnloadModelRequest request;
  v1::UnloadModelResponse response;
  request.set_model("instance_norm_64");
  const grpc::Status unloaded = server.stub().UnloadModel(&context, request, &response);
  ASSERT_TRUE(unloaded.ok()) << unloaded.error_message();
  EXPECT_THAT(response.versions(), ElementsAre(1));
  EXPECT_EQ(Normalize(server, MakeRequest("instance_norm_64", {1, 64, 16})).error_code(),
            grpc::StatusCode::NOT_FOUND);
  server.gate().Open();
  EXPECT_TRUE(call.Wait().ok()) << call.status.error_message();
}

TEST(NormServiceTest, OfALanesFailureSaysWhetherToTryAgainAndNotTheReason) {
  TestServerOptions options;
  options.fail_at_batch = 0;
  TestServer silent(options);
  AsyncCall failed(silent.stub(), MakeRequest("instance_norm_64", {1, 64, 16}));
  EXPECT_EQ(failed.Wait().error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_THAT(failed.status.error_message(), Not(HasSubstr("deadbeef")));
  EXPECT_EQ(Pushback(failed.context), "");
  SetRetryAfter(Duration(0), options.lane_error);
  TestServer server(options);
  AsyncCall retried(server.stub(), MakeRequest("instance_norm_64", {1, 64, 16}));
  EXPECT_EQ(retried.Wait().error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_EQ(Pushback(retried.context), "0");
}

// RefusalTest has the refused ones.
TEST(NormServiceTest, CountsACallWithItsBytes) {
  TestServer server;
  const v1::NormalizeRequest request = MakeRequest("instance_norm_64", {1, 64, 16});
  ASSERT_TRUE(Normalize(server, request).ok());
  server.WaitIdle();
  EXPECT_EQ(server.Metric("normd_requests_total{model=\"instance_norm_64\",version=\"1\","
                          "method=\"Normalize\",code=\"OK\"}"),
            1);
  EXPECT_EQ(server.Metric("normd_stage_duration_seconds_count{model=\"instance_norm_64\","
                          "stage=\"encode\"}"),
            1);
  EXPECT_GE(server.Metric("normd_payload_bytes_total{direction=\"in\"}"), 64 * 16 * 4);
  EXPECT_GE(server.Metric("normd_payload_bytes_total{direction=\"out\"}"), 64 * 16 * 4);
  EXPECT_EQ(server.Metric("normd_ready"), 1);
}

// The fused layer through the service: two named inputs, their errors, and the precision.

constexpr std::int64_t kFeatures = 512;
constexpr char kFusedLinear[] = "fused_linear_512";

v1::NormalizeRequest MakeLinearRequest(std::int64_t samples, std::uint64_t seed = 1) {
  return MakeRequest(kFusedLinear, {samples, kFeatures}, {"x", "y"}, seed);
}

TEST(LinearServiceTest, ComputesTheReferencesResultWithInputsInAnyOrder) {
  TestServer server;
  v1::NormalizeRequest request = MakeLinearRequest(3);
  const v1::NormalizeResponse response = Normalized(server, request);
  ExpectRight(server, request, response);
  request.mutable_inputs()->SwapElements(0, 1);
  EXPECT_EQ(Normalized(server, request).outputs(0).data(), response.outputs(0).data());
}

TEST(LinearServiceTest, RequestsOfDifferentSizesShareABatch) {
  TestServer server;
  StalledCall first(server, MakeLinearRequest(1, 5));
  AsyncCall second(server.stub(), MakeLinearRequest(2, 7));
  AsyncCall third(server.stub(), MakeLinearRequest(5, 9));
  WaitUntil([&] { return server.queue().waiting_requests() >= 2; });
  server.gate().Open();
  for (AsyncCall* call : {&second, &third}) {
    ASSERT_TRUE(call->Wait().ok()) << call->Wait().error_message();
    EXPECT_EQ(call->response.batch().requests(), 2);
    ExpectRight(server, call->request, call->response);
  }
}

TEST(LinearServiceTest, TakesEveryPrecisionAndComputesAtLeastThat) {
  TestServer server;
  for (int precision = 0; precision <= v1::Precision_MAX; ++precision) {
    v1::NormalizeRequest request = MakeLinearRequest(2);
    request.set_precision(static_cast<v1::Precision>(precision));
    ExpectRight(server, request, Normalized(server, request));
  }
}

// In a stream it is the sum that counts.
TEST(LinearServiceTest, NamesTheInputWhoseDataIsShort) {
  TestServer server;
  v1::NormalizeRequest request = MakeLinearRequest(2);
  request.mutable_inputs(1)->mutable_data()->resize(4092);
  const grpc::Status status = Normalize(server, request);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("input \"y\": data: 4092 bytes, wanted 4096"));
}

}  // namespace
}  // namespace normd::testing
