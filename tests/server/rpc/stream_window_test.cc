// How much of a stream is held: the window, the queue, and what streams share.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "server/accept/stream_plan.h"
#include "server/rpc/norm_messages.h"
#include "tests/server/rpc/stream_client.h"
#include "tests/server/rpc/stream_fixture.h"
#include "tests/server/rpc/test_server.h"
#include "tests/support/threads.h"
#include "wire/normalize_request.h"

namespace normd::testing {
namespace {

using ::testing::HasSubstr;

TEST(StreamWindowTest, StopsReadingWhenTheWindowIsFullAndGoesOnWhenThereIsRoom) {
  TestServer server(SmallWindow());
  server.gate().Close();
  // 1 MiB in rows of 1 KiB: pieces of 4 KiB, of which the window takes so many.
  const v1::NormalizeRequest request = MakeRequest("layer_norm_1024", {256, 1024});
  StreamResult result;
  std::thread client([&] {
    result = NormalizeInChunks(server.stub(), request, ChunksOf(static_cast<std::size_t>(kPiece)));
  });
  // The lane holds one batch; nothing is sent back. The server reads while the largest chunk fits.
  server.gate().WaitForStalled(1);
  const std::int64_t window_pieces = (kWindow - kMaxChunk) / kPiece + 1;
  const std::string in = "normd_payload_bytes_total{direction=\"in\"}";
  WaitUntil([&] { return server.Metric(in) >= static_cast<double>(window_pieces * kPiece); });
  for (int i = 0; i < 50; ++i) {
    grpc::ClientContext context;
    v1::GetServerInfoResponse info;
    ASSERT_TRUE(server.stub().GetServerInfo(&context, {}, &info).ok());
    ASSERT_LE(server.Metric(in), static_cast<double>(window_pieces * (kPiece + 16) + 100));
  }
  server.gate().Open();
  client.join();
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  EXPECT_TRUE(result.data == Normalized(server, request).outputs(0).data());
}

TEST(StreamWindowTest, AClientThatNeverReadsHoldsNoMoreThanTheWindow) {
  TestServer server(SmallWindow());
  const v1::NormalizeRequest request = MakeRequest("layer_norm_1024", {8192, 1024});  // 32 MiB
  StreamClient client(server.stub());
  std::thread writer([&] {
    EXPECT_FALSE(SendWhole(client, request))
        << "the server took a tensor whose response nobody read";
  });
  // The window, and what the transport holds on its way.
  const std::string in = "normd_payload_bytes_total{direction=\"in\"}";
  WaitUntil([&] { return server.Metric(in) >= kWindow - kMaxChunk; });
  for (int i = 0; i < 50; ++i) {
    grpc::ClientContext context;
    v1::GetServerInfoResponse info;
    ASSERT_TRUE(server.stub().GetServerInfo(&context, {}, &info).ok());
    EXPECT_LE(server.Metric("normd_pool_bytes{pool=\"host\",state=\"used\"}"), 2.0 * kWindow);
    EXPECT_LE(server.Metric("normd_inflight_bytes"), 2.0 * kWindow);
  }
  client.Cancel();
  writer.join();
  EXPECT_EQ(client.Finish().error_code(), grpc::StatusCode::CANCELLED);
  ExpectNothingHeld(server);
}

TEST(StreamWindowTest, WaitsForAPlaceInAFullQueue) {
  TestServerOptions options = SmallWindow();
  options.queue.max_queue_requests = 1;
  TestServer server(options);
  const v1::NormalizeRequest request = MakeRequest("layer_norm_1024", {200, 1024});
  const StreamResult result = NormalizeInChunks(server.stub(), request, ChunksOf(10000));
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  EXPECT_TRUE(result.data == Normalized(server, request).outputs(0).data());
}

TEST(StreamWindowTest, IsRefusedWithAHintWhenTooManyMaySend) {
  TestServerOptions options = SmallWindow();
  // A chunk and its result, for two streams.
  options.admission.max_chunk_bytes = 4 * kMaxChunk;
  TestServer server(options);
  const v1::NormalizeRequest request = MakeRequest("layer_norm_1024", {200, 1024});
  StreamClient first(server.stub());
  StreamClient second(server.stub());
  for (StreamClient* client : {&first, &second}) {
    ASSERT_TRUE(client->SendHeader(request));
    ASSERT_TRUE(client->Read()->has_header());
  }
  StreamClient third(server.stub());
  ASSERT_TRUE(third.SendHeader(request));
  const grpc::Status refused = third.Finish();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(),
              HasSubstr("bytes of streams' next chunks: wanted 32768, 0 of 65536 are free"));
  EXPECT_EQ(third.context().GetServerTrailingMetadata().count("grpc-retry-pushback-ms"), 1U);
  // What holds nothing keeps nothing from others.
  EXPECT_EQ(server.Metric("normd_inflight_bytes"), 0);
  Normalized(server, MakeRequest("layer_norm_1024", {4, 1024}));
  for (StreamClient* client : {&first, &second}) {
    client->Cancel();
    client->Finish();
  }
  server.WaitIdle();
  EXPECT_TRUE(NormalizeInChunks(server.stub(), request, ChunksOf(10000)).status.ok());
}

TEST(StreamWindowTest, ManyStreamsShareABudgetOfOne) {
  TestServerOptions options = SmallWindow();
  options.admission.max_inflight_bytes = 2 * kWindow;
  options.admission.overdraft_bytes = kWindow;
  options.admission.max_chunk_bytes = 1 << 30;
  TestServer server(options);
  // Rows of 48 KiB, the largest that the window takes.
  const v1::NormalizeRequest request = MakeRequest("instance_norm_64", {1, 64, 12288});
  RunThreads(12, [&](int i) {
    const auto stub = v1::NormService::NewStub(server.NewChannel());
    const StreamResult result =
        NormalizeInChunks(*stub, request, ChunksOf(static_cast<std::size_t>(1000 + 999 * i)));
    EXPECT_TRUE(result.status.ok()) << result.status.error_message();
    EXPECT_EQ(result.data.size(), request.inputs(0).data().size());
  });
  ExpectNothingHeld(server);
}

// Around every place where a size stops fitting something.
TEST(StreamWindowTest, TheNeededWindowIsRightForAnyShape) {
  TestServer server;
  AddWide(server);
  std::vector<std::int64_t> sizes = {0, 1, 3};
  for (const int bits : {31, 32, 52, 53, 54, 60, 61, 62, 63}) {
    const auto power = static_cast<std::int64_t>((std::uint64_t{1} << bits) - 1);
    for (const std::int64_t divisor : {1, 2, 3, 4, 8, 64, 256, 4096}) {
      for (const std::int64_t delta : {-2, -1, 0}) sizes.push_back(power / divisor + delta);
    }
  }
  int refused = 0;
  for (const char* model : {"instance_norm_64", "layer_norm_1024", "fused_linear_512", kWide}) {
    const bool channels_first = model[0] == 'i';
    const std::int64_t elements = model[0] == 'l' ? 1024 : model[0] == 'f' ? 512 : 16;
    for (const std::int64_t size : sizes) {
      for (const std::int64_t other : {std::int64_t{1}, std::int64_t{2}, std::int64_t{1} << 31}) {
        v1::NormalizeRequest request;
        const std::vector<std::int64_t> shape =
            channels_first ? std::vector<std::int64_t>{other, 64, size}
                           : std::vector<std::int64_t>{size, other, elements};
        NormalizeRequestView view;
        view.model = model;
        for (const char* name : {"x", "y"}) {
          ReceivedTensor& tensor = view.inputs.emplace_back();
          tensor.name = model[0] == 'f' ? name : "";
          tensor.dtype = v1::FLOAT32;
          tensor.shape.assign(shape.begin(), shape.end());
          if (model[0] != 'f') break;
        }
        StreamLimits limits;
        const auto loaded = *server.registry().Find(model, 0);
        CheckedInputs inputs;
        const absl::Status checked = CheckInputs(*loaded, Describe(std::move(view)).inputs, inputs);
        const auto check = [&]() -> absl::StatusOr<StreamPlan> {
          if (!checked.ok()) return checked;
          return PlanStream(*loaded, inputs, limits);
        };
        const auto plan = check();
        if (plan.ok()) {
          for (const std::int64_t bytes :
               {std::int64_t{0}, std::int64_t{1}, plan->limits.window_bytes}) {
            if (bytes > inputs.geometry.InputBytes()) continue;
            EXPECT_GE(HeldBytes(inputs.geometry, bytes), bytes);
            EXPECT_LE(HeldBytes(inputs.geometry, bytes), 2 * limits.window_bytes + 1);
          }
          continue;
        }
        const std::string message(plan.status().message());
        ASSERT_TRUE(absl::IsInvalidArgument(plan.status())) << message;
        ASSERT_EQ(message.find('-'), message.find("--stream_window_bytes")) << message;
        const std::string before = "needs a stream window of ";
        const std::size_t at = message.find(before);
        if (at == std::string::npos) continue;  // The shape itself is too large.
        ++refused;
        const std::string needed = message.substr(at + before.size());
        if (absl::StartsWith(needed, "more than 9223372036854775807")) continue;
        limits.window_bytes = std::stoll(needed);
        ASSERT_TRUE(check().ok()) << message << "; then " << check().status();
        --limits.window_bytes;
        ASSERT_FALSE(check().ok()) << message;
      }
    }
  }
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace normd::testing
