// Streams of the fused layer: several inputs in one stream, and an output of another size.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>

#include "client/tensor/random.h"
#include "tests/server/rpc/stream_client.h"
#include "tests/server/rpc/stream_fixture.h"
#include "tests/server/rpc/test_server.h"
#include "tests/support/tensor.h"

namespace normd::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kWide[] = "wide";  // 16 -> 512 features, without a second input.
constexpr std::int64_t kLinearPiece = 16384;

TestServerOptions Window(std::int64_t bytes) {
  TestServerOptions options;
  options.cpu_lanes = 2;
  options.accept.stream = {.window_bytes = bytes, .piece_bytes = kLinearPiece};
  return options;
}

void AddWide(TestServer& server) {
  v1::ModelConfig config;
  config.mutable_linear_norm()->set_in_features(16);
  config.mutable_linear_norm()->set_out_features(512);
  config.mutable_linear_norm()->set_bias(false);
  const client::Tensor weight =
      client::RandomTensor(norm::DType::kFloat32, *Shape::Create({512, 16}), -1, 1, 3).value();
  AddModel(server, kWide, config, {{"linear.weight", weight}});
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

TEST(StreamLinearTest, NamesTheWindowThatASampleNeeds) {
  const v1::NormalizeRequest request = MakeRequest(kWide, {2, 16});
  const auto run = [&](std::int64_t window_bytes) {
    TestServer server(Window(window_bytes));
    AddWide(server);
    return NormalizeInChunks(server.stub(), request, [] { return std::size_t{1}; }).status;
  };
  const std::string message = run(2048).error_message();
  const std::string before = "a sample of [2, 16] has 64 bytes and needs a stream window of ";
  ASSERT_THAT(message, HasSubstr(before));
  const std::string needed = message.substr(message.find(before) + before.size());
  EXPECT_TRUE(run(std::stoll(needed)).ok()) << needed;
}

}  // namespace
}  // namespace normd::testing
