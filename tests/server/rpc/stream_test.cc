// NormalizeStream over a real connection, with windows of some kilobytes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/accept/stream_plan.h"
#include "server/rpc/norm_messages.h"
#include "tests/server/rpc/raw_client.h"
#include "tests/server/rpc/stream_client.h"
#include "tests/server/rpc/test_server.h"
#include "tests/support/tensor.h"

namespace normd {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::MakeRequest;
using testing::NormalizeInChunks;
using testing::StreamBytes;
using testing::StreamClient;
using testing::StreamResult;
using testing::TestServer;
using testing::TestServerOptions;

constexpr std::int64_t kWindow = 64 << 10;
constexpr std::int64_t kPiece = 4 << 10;
constexpr std::int64_t kMaxChunk = kWindow / 4;

TestServerOptions SmallWindow() {
  TestServerOptions options;
  options.accept.stream = {.window_bytes = kWindow, .piece_bytes = kPiece};
  return options;
}

std::function<std::size_t()> ChunksOf(std::size_t bytes) {
  return [bytes] { return bytes; };
}

v1::NormalizeResponse Unary(TestServer& server, const v1::NormalizeRequest& request) {
  grpc::ClientContext context;
  v1::NormalizeResponse response;
  const grpc::Status status = server.stub().Normalize(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response;
}

v1::NormalizeRequest HalfRequest(const std::vector<std::int64_t>& shape, std::uint64_t seed) {
  v1::NormalizeRequest request = MakeRequest("group_norm_320_32_silu_last", shape, seed);
  v1::Tensor& input = *request.mutable_inputs(0);
  const std::size_t elements = input.data().size() / sizeof(float);
  norm::testing::Tensor half(norm::DType::kFloat16, static_cast<std::int64_t>(elements));
  half.Fill(norm::testing::Data::kNormal, seed);
  input.set_dtype(v1::FLOAT16);
  input.set_data(half.data(), half.bytes());
  return request;
}

// Everything that a stream may hold is free again.
void ExpectNothingHeld(TestServer& server) {
  server.WaitIdle();
  EXPECT_EQ(server.Metric("normd_inflight_bytes"), 0);
  EXPECT_EQ(server.queue().waiting_requests(), 0);
  // gRPC lets go of the last answer's bytes on a thread of its own, soon after the call's end.
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  const std::string used = "normd_pool_bytes{pool=\"host\",state=\"used\"}";
  while (server.Metric(used) > 0 && std::chrono::steady_clock::now() < give_up) {
    std::this_thread::yield();
  }
  EXPECT_EQ(server.Metric(used), 0);
}

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
  EXPECT_EQ(result.data, Unary(server, request).outputs(0).data());
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

// Computed by lanes, or within Push: see BatchQueue::RunInlineOn.
class StreamPathTest : public ::testing::TestWithParam<std::int64_t> {
 protected:
  static TestServerOptions Options() {
    TestServerOptions options = SmallWindow();
    options.cpu_lanes = 2;
    options.queue.max_inline_bytes = GetParam();
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(InlineBytes, StreamPathTest, ::testing::Values(0, 1 << 20));

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
      const std::string expected = Unary(server, request).outputs(0).data();
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
  EXPECT_TRUE(result.data == Unary(server, request).outputs(0).data());
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
  EXPECT_TRUE(received == Unary(server, request).outputs(0).data());
}

TEST(StreamTest, StopsReadingWhenTheWindowIsFullAndGoesOnWhenThereIsRoom) {
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
  while (server.Metric(in) < static_cast<double>(window_pieces * kPiece)) {
    std::this_thread::yield();
  }
  for (int i = 0; i < 50; ++i) {
    grpc::ClientContext context;
    v1::GetServerInfoResponse info;
    ASSERT_TRUE(server.stub().GetServerInfo(&context, {}, &info).ok());
    ASSERT_LE(server.Metric(in), static_cast<double>(window_pieces * (kPiece + 16) + 100));
  }
  server.gate().Open();
  client.join();
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  EXPECT_TRUE(result.data == Unary(server, request).outputs(0).data());
}

TEST(StreamTest, AClientThatNeverReadsHoldsNoMoreThanTheWindow) {
  TestServer server(SmallWindow());
  const v1::NormalizeRequest request = MakeRequest("layer_norm_1024", {8192, 1024});  // 32 MiB
  StreamClient client(server.stub());
  std::thread writer([&] {
    absl::string_view left = request.inputs(0).data();
    bool open = client.SendHeader(request);
    while (open && !left.empty()) {
      open = client.SendChunk(left.substr(0, static_cast<std::size_t>(kMaxChunk)));
      left.remove_prefix(static_cast<std::size_t>(kMaxChunk));
    }
    EXPECT_FALSE(open) << "the server took a tensor whose answer nobody read";
  });
  // The window, and what the transport holds on its way.
  const std::string in = "normd_payload_bytes_total{direction=\"in\"}";
  while (server.Metric(in) < kWindow - kMaxChunk) std::this_thread::yield();
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

TEST(StreamTest, WaitsForAPlaceInAFullQueue) {
  TestServerOptions options = SmallWindow();
  options.queue.max_queue_requests = 1;
  TestServer server(options);
  const v1::NormalizeRequest request = MakeRequest("layer_norm_1024", {200, 1024});
  const StreamResult result = NormalizeInChunks(server.stub(), request, ChunksOf(10000));
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  EXPECT_TRUE(result.data == Unary(server, request).outputs(0).data());
}

TEST(StreamTest, IsRefusedWithAHintWhenTooManyMaySend) {
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
  Unary(server, MakeRequest("layer_norm_1024", {4, 1024}));
  for (StreamClient* client : {&first, &second}) {
    client->Cancel();
    client->Finish();
  }
  server.WaitIdle();
  EXPECT_TRUE(NormalizeInChunks(server.stub(), request, ChunksOf(10000)).status.ok());
}

TEST(StreamTest, ManyStreamsShareABudgetOfOne) {
  TestServerOptions options = SmallWindow();
  options.admission.max_inflight_bytes = 2 * kWindow;
  options.admission.overdraft_bytes = kWindow;
  options.admission.max_chunk_bytes = 1 << 30;
  TestServer server(options);
  // Rows of 48 KiB, the largest that the window takes.
  const v1::NormalizeRequest request = MakeRequest("instance_norm_64", {1, 64, 12288});
  std::vector<std::thread> clients;
  for (int i = 0; i < 12; ++i) {
    clients.emplace_back([&, i] {
      const auto stub = v1::NormService::NewStub(server.NewChannel());
      const StreamResult result =
          NormalizeInChunks(*stub, request, ChunksOf(static_cast<std::size_t>(1000 + 999 * i)));
      EXPECT_TRUE(result.status.ok()) << result.status.error_message();
      EXPECT_EQ(result.data.size(), request.inputs(0).data().size());
    });
  }
  for (std::thread& client : clients) client.join();
  ExpectNothingHeld(server);
}

struct BadStream {
  std::string name;
  std::function<void(StreamClient&)> send;
  grpc::StatusCode code;
  std::string message;
};

v1::NormalizeRequest Rows(int rows) { return MakeRequest("layer_norm_1024", {rows, 1024}); }

v1::NormalizeRequest Fused(int samples) {
  v1::NormalizeRequest request = MakeRequest("fused_linear_512", {samples, 512});
  request.mutable_inputs(0)->set_name("x");
  *request.add_inputs() = request.inputs(0);
  request.mutable_inputs(1)->set_name("y");
  return request;
}

std::vector<BadStream> BadStreams() {
  constexpr auto kInvalid = grpc::StatusCode::INVALID_ARGUMENT;
  const auto header = [](const std::function<void(v1::NormalizeRequest&)>& change) {
    return [change](StreamClient& client) {
      v1::NormalizeRequest request = Rows(2);
      change(request);
      client.SendHeader(request);
    };
  };
  return {
      {"NoMessage", [](StreamClient& c) { c.HalfClose(); }, kInvalid, "wanted the header"},
      {"ChunkFirst", [](StreamClient& c) { c.SendChunk("abc"); }, kInvalid, "wanted the header"},
      {"EmptyMessage", [](StreamClient& c) { c.Send({}); }, kInvalid, "wanted the header"},
      {"SecondHeader", [](StreamClient& c) { c.SendHeader(Rows(2)), c.SendHeader(Rows(2)); },
       kInvalid, "part: wanted a chunk after the header"},
      {"EmptyPart", [](StreamClient& c) { c.SendHeader(Rows(2)), c.Send({}); }, kInvalid,
       "part: wanted a chunk after the header"},
      {"DataInTheHeader",
       [](StreamClient& c) {
         v1::NormalizeStreamRequest message;
         *message.mutable_header() = Rows(1);
         message.mutable_header()->mutable_inputs(0)->mutable_data()->resize(8);
         c.Send(message);
       },
       kInvalid, "data: 8 bytes in the header"},
      {"LongHeader", header([](v1::NormalizeRequest& r) { r.set_model(std::string(5000, 'a')); }),
       kInvalid, "header: 5"},
      {"UnknownModel", header([](v1::NormalizeRequest& r) { r.set_model("nothing"); }),
       grpc::StatusCode::NOT_FOUND, "model: nothing"},
      {"MissingInput", header([](v1::NormalizeRequest& r) { r.set_model("fused_linear_512"); }),
       kInvalid, "inputs[0].name: \"\", wanted \"x\" and \"y\""},
      {"WrongShape",
       header([](v1::NormalizeRequest& r) { r.mutable_inputs(0)->set_shape(1, 1023); }), kInvalid,
       "shape[1]: 1023"},
      {"NegativeTimeout", header([](v1::NormalizeRequest& r) { r.set_queue_timeout_ns(-1); }),
       kInvalid, "queue_timeout_ns: -1"},
      {"RowLargerThanTheWindow",
       [](StreamClient& c) {
         v1::NormalizeRequest request = MakeRequest("instance_norm_64", {1, 64, 1});
         request.mutable_inputs(0)->set_shape(2, 20000);
         c.SendHeader(request);
       },
       kInvalid, "has 80000 bytes and needs a stream window of 106667, the server's is 65536"},
      {"SampleLargerThanTheWindow",
       [](StreamClient& c) {
         v1::NormalizeRequest request = HalfRequest({1, 1, 1, 320}, 1);
         request.mutable_inputs(0)->set_shape(1, 1000);
         c.SendHeader(request);
       },
       kInvalid,
       "shape: a sample of [1, 1000, 1, 320] has 640000 bytes and needs a stream window of"},
      {"LargeChunk",
       [](StreamClient& c) {
         c.SendHeader(Rows(20)), c.SendChunk(std::string(kMaxChunk + 1, 'x'));
       },
       kInvalid, "chunk: 16385 bytes, wanted at most 16384"},
      {"TooManyBytes",
       [](StreamClient& c) { c.SendHeader(Rows(2)), c.SendChunk(std::string(8193, 'x')); },
       kInvalid, "data: 8193 bytes or more, wanted 8192 for shape [2, 1024] of float32"},
      {"TooManyBytesInALaterChunk",
       [](StreamClient& c) {
         c.SendHeader(Rows(2)), c.SendChunk(std::string(8192, 'x')), c.SendChunk("y");
       },
       kInvalid, "data: 8193 bytes or more, wanted 8192"},
      {"BytesOfAnEmptyTensor", [](StreamClient& c) { c.SendHeader(Rows(0)), c.SendChunk("y"); },
       kInvalid, "data: 1 bytes or more, wanted 0"},
      {"TooFewBytes",
       [](StreamClient& c) {
         c.SendHeader(Rows(2)), c.SendChunk(std::string(8191, 'x')), c.HalfClose();
       },
       kInvalid, "data: 8191 bytes, wanted 8192 for shape [2, 1024] of float32"},
      {"NoBytes", [](StreamClient& c) { c.SendHeader(Rows(2)), c.HalfClose(); }, kInvalid,
       "data: 0 bytes, wanted 8192"},
  };
}

TEST(StreamTest, NamesWhatIsWrongAndHoldsNothing) {
  TestServer server(SmallWindow());
  for (const BadStream& bad : BadStreams()) {
    SCOPED_TRACE(bad.name);
    StreamClient client(server.stub());
    bad.send(client);
    const grpc::Status status = client.Finish();
    EXPECT_EQ(status.error_code(), bad.code);
    EXPECT_THAT(status.error_message(), HasSubstr(bad.message));
  }
  ExpectNothingHeld(server);
}

TEST(StreamTest, RefusesBytesThatAreNoMessage) {
  TestServer server(SmallWindow());
  for (const std::string& wire :
       {std::string("\x0a\x7f"), std::string("\x12\x03zz"), std::string("\x00", 1),
        std::string("\x12\x01x\x12\x01y"), std::string("\xff\xff\xff\xff\xff\xff")}) {
    const grpc::Status status =
        testing::RawCall(server.NewChannel(), "/normd.v1.NormService/NormalizeStream", wire);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
  }
}

TEST(StreamTest, EndsAtItsDeadline) {
  TestServer server(SmallWindow());
  StreamClient client(server.stub(), [](grpc::ClientContext& context) {
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(30));
  });
  client.SendHeader(Rows(2));
  EXPECT_EQ(client.Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  ExpectNothingHeld(server);
}

TEST(StreamTest, GivesUpAClientThatSendsNothing) {
  TestServerOptions options = SmallWindow();
  options.calls.stream_idle_timeout = std::chrono::milliseconds(20);
  TestServer server(options);
  StreamClient client(server.stub());
  client.SendHeader(Rows(2));
  client.SendChunk("abcd");
  const grpc::Status status = client.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_THAT(status.error_message(), HasSubstr("the client sent and took nothing for 20 ms"));
  ExpectNothingHeld(server);
}

TEST(StreamTest, GivesUpAClientThatTakesNothing) {
  TestServerOptions options = SmallWindow();
  options.calls.stream_idle_timeout = std::chrono::milliseconds(20);
  TestServer server(options);
  const v1::NormalizeRequest request = Rows(8192);  // 32 MiB: more than a connection buffers.
  StreamClient client(server.stub());
  absl::string_view left = request.inputs(0).data();
  bool open = client.SendHeader(request);
  while (open && !left.empty()) {
    open = client.SendChunk(left.substr(0, static_cast<std::size_t>(kMaxChunk)));
    left.remove_prefix(static_cast<std::size_t>(kMaxChunk));
  }
  EXPECT_FALSE(open);
  ExpectNothingHeld(server);
  // On a busy machine the time may be over between two messages: then the client hears why.
  EXPECT_THAT(client.Finish().error_code(),
              AnyOf(grpc::StatusCode::CANCELLED, grpc::StatusCode::DEADLINE_EXCEEDED));
}

// Its status waits behind the message that is being written; not for ever.
TEST(StreamTest, GivesUpAClientThatTakesNothingOfAFailedStream) {
  TestServerOptions options = SmallWindow();
  options.calls.stream_idle_timeout = std::chrono::milliseconds(1000);
  TestServer server(options);
  const v1::NormalizeRequest request = Rows(8192);  // 32 MiB: more than a connection buffers.
  StreamClient client(server.stub());
  std::thread writer([&] {
    absl::string_view left = request.inputs(0).data();
    bool open = client.SendHeader(request);
    while (open && !left.empty()) {
      open = client.SendChunk(left.substr(0, kMaxChunk));
      left.remove_prefix(kMaxChunk);
    }
  });
  // Until nothing moves any more, because the client does not take what is being written.
  double sent = 0;
  for (int still = 0; still < 20; ++still) {
    const double now = server.Metric("normd_payload_bytes_total{direction=\"out\"}");
    if (std::exchange(sent, now) != now || now == 0) still = 0;
  }
  server.stop_parts().active.AbortStreams(absl::UnavailableError("the server is stopping"));
  writer.join();  // Nothing is read before the stream's end.
  EXPECT_FALSE(client.Finish().ok());
  ExpectNothingHeld(server);
}

TEST(StreamTest, AFailedLaneEndsTheStream) {
  TestServerOptions options = SmallWindow();
  options.fail_at_batch = 1;
  TestServer server(options);
  const StreamResult result =
      NormalizeInChunks(server.stub(), Rows(200), ChunksOf(static_cast<std::size_t>(kPiece)));
  EXPECT_THAT(result.status.error_code(),
              ::testing::AnyOf(grpc::StatusCode::INTERNAL, grpc::StatusCode::UNAVAILABLE));
  EXPECT_FALSE(result.trailer.has_value());
  ExpectNothingHeld(server);
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

// How many faulty streams; each takes about a millisecond.
int FaultyStreams() {
  int count = 200;
  const char* wanted = std::getenv("NORMD_FAULTY_STREAMS");
  if (wanted != nullptr && !absl::SimpleAtoi(wanted, &count)) ADD_FAILURE() << wanted;
  return count;
}

enum class Fault {
  kCancel,
  kCancelWithoutReading,
  kConnectionLost,
  kDeadline,
  kTooManyBytes,
  kTooFewBytes,
  kLargeChunk,
  kNoPart,
};
constexpr int kFaults = 8;

// One stream that goes wrong in one of many ways at a random point.
void RunFaultyStream(TestServer& server, std::mt19937_64& random) {
  const auto up_to = [&random](int last) {
    return std::uniform_int_distribution<int>(0, last)(random);
  };
  const v1::NormalizeRequest request = up_to(3) > 0 ? Rows(1 + up_to(60)) : Fused(1 + up_to(60));
  const std::string bytes = StreamBytes(request);
  const absl::string_view data = bytes;
  const auto fault = static_cast<Fault>(up_to(kFaults - 1));
  const auto own = v1::NormService::NewStub(server.NewChannel());
  StreamClient client(fault == Fault::kConnectionLost ? *own : server.stub(),
                      [&](grpc::ClientContext& context) {
                        if (fault != Fault::kDeadline) return;
                        context.set_deadline(std::chrono::system_clock::now() +
                                             std::chrono::microseconds(up_to(3000)));
                      });
  std::thread reader([&] {
    while (fault != Fault::kCancelWithoutReading && client.Read()) {
    }
  });
  std::size_t end = static_cast<std::size_t>(up_to(static_cast<int>(data.size()) - 1));
  if (fault == Fault::kTooManyBytes) end = data.size();
  // More would wait for a reader.
  if (fault == Fault::kCancelWithoutReading) end = std::min<std::size_t>(end, kWindow / 2);
  bool open = client.SendHeader(request);
  for (std::size_t sent = 0; open && sent < end;) {
    const std::size_t part = std::min<std::size_t>(end - sent, 1 + up_to(kMaxChunk - 1));
    open = client.SendChunk(data.substr(sent, part));
    sent += part;
  }
  switch (fault) {
    case Fault::kTooManyBytes: client.SendChunk("more"); break;
    case Fault::kTooFewBytes: client.HalfClose(); break;
    case Fault::kLargeChunk: client.SendChunk(std::string(kMaxChunk + 1, 'x')); break;
    case Fault::kNoPart: client.Send({}); break;
    case Fault::kDeadline: break;
    default: client.Cancel();
  }
  reader.join();
  EXPECT_FALSE(client.Finish().ok());
}

TEST_P(StreamPathTest, FaultyStreamsLeaveNothingBehind) {
  TestServer server(Options());
  const int count = FaultyStreams();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      std::mt19937_64 random(norm::testing::TestSeed() + static_cast<std::uint64_t>(i));
      for (int j = 0; j < count / 4; ++j) RunFaultyStream(server, random);
    });
  }
  for (std::thread& thread : threads) thread.join();
  ExpectNothingHeld(server);
  const v1::NormalizeRequest request = Rows(20);
  const StreamResult result = NormalizeInChunks(server.stub(), request, ChunksOf(9999));
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  EXPECT_TRUE(result.data == Unary(server, request).outputs(0).data());
}

// Around every place where a size stops fitting something.
TEST(StreamTest, TheNeededWindowIsRightForAnyShape) {
  TestServer server;
  std::vector<std::int64_t> sizes = {0, 1, 3};
  for (const int bits : {31, 32, 52, 53, 54, 60, 61, 62, 63}) {
    const auto power = static_cast<std::int64_t>((std::uint64_t{1} << bits) - 1);
    for (const std::int64_t divisor : {1, 2, 3, 4, 8, 64, 256, 4096}) {
      for (const std::int64_t delta : {-2, -1, 0}) sizes.push_back(power / divisor + delta);
    }
  }
  int refused = 0;
  for (const char* model : {"instance_norm_64", "layer_norm_1024", "fused_linear_512"}) {
    const bool channels_first = model[0] == 'i';
    for (const std::int64_t size : sizes) {
      for (const std::int64_t other : {std::int64_t{1}, std::int64_t{2}, std::int64_t{1} << 31}) {
        v1::NormalizeRequest request;
        const std::vector<std::int64_t> shape =
            channels_first ? std::vector<std::int64_t>{other, 64, size}
                           : std::vector<std::int64_t>{size, other, model[0] == 'l' ? 1024 : 512};
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

// Until its last word the client is waited for, but not for ever.
TEST(StreamTest, GivesUpAClientThatSendsNoHeader) {
  TestServerOptions options = SmallWindow();
  options.calls.stream_idle_timeout = std::chrono::milliseconds(20);
  TestServer server(options);
  StreamClient client(server.stub());
  EXPECT_EQ(client.Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  ExpectNothingHeld(server);
}

TEST(StreamTest, GivesUpAClientThatDoesNotHalfClose) {
  TestServerOptions options = SmallWindow();
  options.calls.stream_idle_timeout = std::chrono::milliseconds(20);
  TestServer server(options);
  StreamClient client(server.stub());
  const v1::NormalizeRequest request = Rows(1);
  ASSERT_TRUE(client.SendHeader(request));
  client.SendChunk(request.inputs(0).data());
  EXPECT_EQ(client.Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  ExpectNothingHeld(server);
}

}  // namespace
}  // namespace normd
