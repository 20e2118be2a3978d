// NormalizeStream over a real connection: what it answers, and with which bits.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tests/server/rpc/stream_client.h"
#include "tests/server/rpc/stream_fixture.h"
#include "tests/server/rpc/test_server.h"
#include "tests/support/tensor.h"

namespace normd::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

INSTANTIATE_TEST_SUITE_P(InlineBytes, StreamPathTest, ::testing::Values(0, 1 << 20));

TEST(StreamTest, AnswersWithHeaderChunksAndTrailer) {
  TestServer server(SmallWindow());
  // A sample of 16,384 bytes is cut into four pieces of 16 rows.
  const v1::NormalizeRequest request = MakeRequest("instance_norm_64", {3, 64, 8, 8});
  const StreamResult result = NormalizeInChunks(server.stub(), request, ChunksOf(5000));
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  ASSERT_TRUE(result.header.has_value());
  EXPECT_EQ(result.header->model(), "instance_norm_64");
  EXPECT_EQ(result.header->version(), 1);
  EXPECT_EQ(result.header->window_bytes(), kWindow);
  EXPECT_EQ(result.header->max_chunk_bytes(), kMaxChunk);
  ASSERT_EQ(result.header->outputs_size(), 1);
  EXPECT_EQ(result.header->outputs(0).dtype(), v1::FLOAT32);
  EXPECT_THAT(result.header->outputs(0).shape(), ElementsAre(3, 64, 8, 8));
  EXPECT_EQ(result.data, Normalized(server, request).outputs(0).data());
  ASSERT_TRUE(result.trailer.has_value());
  EXPECT_EQ(result.trailer->pieces(), 12);
  EXPECT_GT(result.trailer->batches(), 0);
  EXPECT_LE(result.trailer->batches(), 12);
  EXPECT_EQ(result.trailer->bytes(), 3 * 64 * 8 * 8 * 4);
  EXPECT_GT(result.trailer->stages().compute_ns(), 0);
  EXPECT_GT(result.trailer->stages().decode_ns(), 0);
  ExpectNothingHeld(server);
}

TEST(StreamTest, AnswersAnEmptyTensor) {
  TestServer server(SmallWindow());
  const StreamResult result =
      NormalizeInChunks(server.stub(), MakeRequest("instance_norm_64", {0, 64, 9}), ChunksOf(1));
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  ASSERT_TRUE(result.header.has_value());
  EXPECT_THAT(result.header->outputs(0).shape(), ElementsAre(0, 64, 9));
  EXPECT_EQ(result.data, "");
  ASSERT_TRUE(result.trailer.has_value());
  EXPECT_EQ(result.trailer->pieces(), 0);
}

TEST_P(StreamPathTest, EveryChunkingGivesTheBitsOfTheUnaryCall) {
  TestServer server(Options());
  std::mt19937_64 random(norm::testing::TestSeed());
  const auto up_to = [&random](std::int64_t last) {
    return std::uniform_int_distribution<std::int64_t>(1, last)(random);
  };
  for (int round = 0; round < 6; ++round) {
    const std::int64_t n = up_to(6);
    // Odd sizes; samples below and above a piece, rows below and above it too.
    const std::vector<v1::NormalizeRequest> requests = {
        MakeRequest("instance_norm_64", {n, 64, up_to(40), up_to(40)}, random()),
        MakeRequest("group_norm_64_8", {n, 64, up_to(900)}, random()),
        MakeRequest("batch_norm_64", {n, 64, up_to(300)}, random()),
        MakeRequest("instance_norm_64_running", {n, 64, up_to(300)}, random()),
        MakeRequest("layer_norm_1024", {n, up_to(20), 1024}, random()),
        MakeRequest("rms_norm_4096", {n, 4096}, random()),
        HalfRequest({n, up_to(5), up_to(9), 320}, random()),
    };
    for (const v1::NormalizeRequest& request : requests) {
      SCOPED_TRACE(absl::StrCat(request.model(), " ", request.inputs(0).data().size(), " bytes"));
      const std::string expected = Normalized(server, request).outputs(0).data();
      const std::int64_t largest = round % 3 == 0 ? kMaxChunk : round % 3 == 1 ? 3000 : 120000;
      const StreamResult result = NormalizeInChunks(server.stub(), request, [&] {
        return static_cast<std::size_t>(up_to(std::min(largest, kMaxChunk)));
      });
      ASSERT_TRUE(result.status.ok()) << result.status.error_message();
      ASSERT_TRUE(result.data == expected);
    }
  }
  ExpectNothingHeld(server);
}

TEST(StreamTest, ChunksOfOneByteAndEmptyChunksGiveTheSameBits) {
  TestServer server(SmallWindow());
  const v1::NormalizeRequest request = MakeRequest("group_norm_64_8", {1, 64, 3});
  int chunk = 0;
  const StreamResult result = NormalizeInChunks(
      server.stub(), request, [&] { return static_cast<std::size_t>(chunk++ % 3 == 0 ? 0 : 1); });
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  EXPECT_TRUE(result.data == Normalized(server, request).outputs(0).data());
}

TEST(StreamTest, ResultsOfEarlyRowsComeBeforeLaterRowsAreSent) {
  TestServer server(SmallWindow());
  const v1::NormalizeRequest request = MakeRequest("rms_norm_4096", {3, 4096});
  const absl::string_view data = request.inputs(0).data();
  StreamClient client(server.stub());
  ASSERT_TRUE(client.SendHeader(request));
  ASSERT_TRUE(client.Read()->has_header());
  std::string received;
  for (std::size_t row = 0; row < 3; ++row) {
    ASSERT_TRUE(client.SendChunk(data.substr(row * 16384, 16384)));
    while (received.size() < (row + 1) * 16384) {
      const auto message = client.Read();
      ASSERT_TRUE(message.has_value());
      received += message->chunk();
    }
  }
  client.HalfClose();
  EXPECT_TRUE(client.Read()->has_trailer());
  EXPECT_TRUE(client.Finish().ok());
  EXPECT_TRUE(received == Normalized(server, request).outputs(0).data());
}

TEST(StreamTest, CountsInItsOwnSeries) {
  TestServer server(SmallWindow());
  ASSERT_TRUE(NormalizeInChunks(server.stub(), Rows(3), ChunksOf(5000)).status.ok());
  StreamClient client(server.stub());
  client.SendHeader(Rows(3));
  client.HalfClose();
  client.Finish();
  server.WaitIdle();
  const auto calls = [&](const std::string& code) {
    return server.Metric(
        absl::StrCat("normd_requests_total{model=\"layer_norm_1024\",version=\"1\","
                     "method=\"NormalizeStream\",code=\"",
                     code, "\"}"));
  };
  EXPECT_EQ(calls("OK"), 1);
  EXPECT_EQ(calls("INVALID_ARGUMENT"), 1);
  EXPECT_EQ(server.Metric("normd_request_duration_seconds_count{model=\"layer_norm_1024\","
                          "method=\"NormalizeStream\"}"),
            2);
  EXPECT_EQ(server.Metric(
                "normd_stage_duration_seconds_count{model=\"layer_norm_1024\",stage=\"compute\"}"),
            3);
  EXPECT_GE(server.Metric("normd_payload_bytes_total{direction=\"out\"}"), 3 * 4096);
}

// Streams of the fused layer: several inputs in one stream, and an output of another size.

constexpr std::int64_t kLinearPiece = 16384;

TestServerOptions Window(std::int64_t bytes) {
  TestServerOptions options;
  options.cpu_lanes = 2;
  options.accept.stream = {.window_bytes = bytes, .piece_bytes = kLinearPiece};
  return options;
}

std::string OutputOf(TestServer& server, const v1::NormalizeRequest& request) {
  const v1::NormalizeResponse response = Normalized(server, request);
  return response.outputs_size() == 1 ? response.outputs(0).data() : "";
}

TEST(StreamLinearTest, EveryChunkingGivesTheBitsOfTheUnaryCall) {
  TestServer server(Window(8 * kLinearPiece));
  std::mt19937_64 random(norm::testing::TestSeed());
  const v1::NormalizeRequest request = Fused(45);
  const std::string wanted = OutputOf(server, request);
  for (const std::size_t most : {700, 5000, 32768}) {
    const StreamResult result =
        NormalizeInChunks(server.stub(), request, [&] { return random() % most + 1; });
    ASSERT_TRUE(result.status.ok()) << result.status.error_message();
    ASSERT_TRUE(result.header.has_value() && result.trailer.has_value());
    EXPECT_THAT(result.header->outputs(0).shape(), ElementsAre(45, 512));
    EXPECT_TRUE(result.data == wanted) << "chunks of up to " << most;
    EXPECT_EQ(result.trailer->pieces(), 12) << "of four samples";
    EXPECT_EQ(result.trailer->bytes(), 45 * 512 * 4);
  }
  ExpectNothingHeld(server);
}

TEST(StreamLinearTest, TheOrderOfTheInputsIsTheModelsWhateverTheHeadersIs) {
  TestServer server(Window(8 * kLinearPiece));
  const v1::NormalizeRequest request = Fused(7);
  v1::NormalizeRequest swapped = request;
  swapped.mutable_inputs()->SwapElements(0, 1);
  StreamClient client(server.stub());
  ASSERT_TRUE(client.SendHeader(swapped));
  ASSERT_TRUE(client.SendChunk(StreamBytes(request)));
  client.HalfClose();
  std::string data;
  while (const auto message = client.Read()) data += message->chunk();
  EXPECT_TRUE(client.Finish().ok());
  EXPECT_TRUE(data == OutputOf(server, request));
}

TEST(StreamLinearTest, CountsTheBytesOfAllInputs) {
  TestServer server(Window(8 * kLinearPiece));
  for (const std::size_t size : {3 * 4096 - 1, 3 * 4096 + 1}) {
    StreamClient client(server.stub());
    client.SendHeader(Fused(3));
    client.SendChunk(std::string(size, 'x'));
    client.HalfClose();
    const grpc::Status status = client.Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(),
                HasSubstr("wanted 12288 for shape [3, 512] and [3, 512] of float32"));
  }
  ExpectNothingHeld(server);
}

TEST(StreamLinearTest, AnOutputLargerThanTheInputsNarrowsTheWindow) {
  TestServer server(Window(kWindow));  // Each sample of 64 bytes has an output of 2048.
  AddWide(server);
  const v1::NormalizeRequest request = MakeRequest(kWide, {300, 16});
  const StreamResult result =
      NormalizeInChunks(server.stub(), request, [] { return std::size_t{500}; });
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  EXPECT_EQ(result.header->window_bytes(), kWindow / 32);
  EXPECT_EQ(result.header->max_chunk_bytes(), kWindow / 32 / 4);
  EXPECT_THAT(result.header->outputs(0).shape(), ElementsAre(300, 512));
  EXPECT_TRUE(result.data == OutputOf(server, request));
  EXPECT_EQ(result.trailer->bytes(), 300 * 2048);
  ExpectNothingHeld(server);
}

}  // namespace
}  // namespace normd::testing
