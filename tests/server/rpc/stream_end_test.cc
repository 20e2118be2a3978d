// Streams that end early: through their client, their deadline or a lane, or as they are wrong.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "tests/server/rpc/raw_client.h"
#include "tests/server/rpc/stream_client.h"
#include "tests/server/rpc/stream_fixture.h"
#include "tests/server/rpc/test_server.h"
#include "tests/support/tensor.h"
#include "tests/support/threads.h"

namespace normd::testing {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

class StreamEndPathTest : public StreamPathTest {};
INSTANTIATE_TEST_SUITE_P(InlineBytes, StreamEndPathTest, ::testing::Values(0, 1 << 20));

struct BadStream {
  std::string name;
  std::function<void(StreamClient&)> send;
  grpc::StatusCode code;
  std::string message;
};

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

TEST(StreamEndTest, NamesWhatIsWrongAndHoldsNothing) {
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

TEST(StreamEndTest, RefusesBytesThatAreNoMessage) {
  TestServer server(SmallWindow());
  for (const std::string& wire :
       {std::string("\x0a\x7f"), std::string("\x12\x03zz"), std::string("\x00", 1),
        std::string("\x12\x01x\x12\x01y"), std::string("\xff\xff\xff\xff\xff\xff")}) {
    const grpc::Status status =
        RawCall(server.NewChannel(), "/normd.v1.NormService/NormalizeStream", wire);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
  }
}

TEST(StreamEndTest, EndsAtItsDeadline) {
  TestServer server(SmallWindow());
  StreamClient client(server.stub(), [](grpc::ClientContext& context) {
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(30));
  });
  client.SendHeader(Rows(2));
  EXPECT_EQ(client.Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  ExpectNothingHeld(server);
}

TestServerOptions WithIdleTimeout(std::chrono::milliseconds timeout) {
  TestServerOptions options = SmallWindow();
  options.calls.stream_idle_timeout = timeout;
  return options;
}

// Until its last word, the half-close, the client is waited for, but not for ever.
TEST(StreamEndTest, GivesUpAClientThatSendsNothingMore) {
  TestServer server(WithIdleTimeout(std::chrono::milliseconds(20)));
  const v1::NormalizeRequest whole = Rows(1);
  const std::function<void(StreamClient&)> sent[] = {
      [](StreamClient&) {}, [](StreamClient& c) { c.SendHeader(Rows(2)), c.SendChunk("abcd"); },
      [&](StreamClient& c) { c.SendHeader(whole), c.SendChunk(whole.inputs(0).data()); }};
  for (const auto& send : sent) {
    StreamClient client(server.stub());
    send(client);
    const grpc::Status status = client.Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
    EXPECT_THAT(status.error_message(), HasSubstr("the client sent and took nothing for 20 ms"));
    ExpectNothingHeld(server);
  }
}

TEST(StreamEndTest, GivesUpAClientThatTakesNothing) {
  TestServer server(WithIdleTimeout(std::chrono::milliseconds(20)));
  const v1::NormalizeRequest request = Rows(8192);  // 32 MiB: more than a connection buffers.
  StreamClient client(server.stub());
  EXPECT_FALSE(SendWhole(client, request));
  ExpectNothingHeld(server);
  // On a busy machine the time may be over between two messages: then the client hears why.
  EXPECT_THAT(client.Finish().error_code(),
              AnyOf(grpc::StatusCode::CANCELLED, grpc::StatusCode::DEADLINE_EXCEEDED));
}

// Its status waits behind the message that is being written; not for ever.
TEST(StreamEndTest, GivesUpAClientThatTakesNothingOfAFailedStream) {
  TestServer server(WithIdleTimeout(std::chrono::milliseconds(1000)));
  const v1::NormalizeRequest request = Rows(8192);
  StreamClient client(server.stub());
  std::thread writer([&] { SendWhole(client, request); });
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

TEST(StreamEndTest, AFailedLaneEndsTheStream) {
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

TEST_P(StreamEndPathTest, FaultyStreamsLeaveNothingBehind) {
  TestServer server(Options());
  const int count = FaultyStreams();
  RunThreads(4, [&](int i) {
    std::mt19937_64 random(norm::testing::TestSeed() + static_cast<std::uint64_t>(i));
    for (int j = 0; j < count / 4; ++j) RunFaultyStream(server, random);
  });
  ExpectNothingHeld(server);
  const v1::NormalizeRequest request = Rows(20);
  const StreamResult result = NormalizeInChunks(server.stub(), request, ChunksOf(9999));
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  EXPECT_TRUE(result.data == Normalized(server, request).outputs(0).data());
}

}  // namespace
}  // namespace normd::testing
