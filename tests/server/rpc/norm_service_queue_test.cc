// What Normalize and the calls beside it refuse, whatever the load.

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/descriptor.h"
#include "inference/grpc_service.grpc.pb.h"
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

constexpr auto kInvalid = grpc::StatusCode::INVALID_ARGUMENT;

TEST(NormServiceRefusalTest, RefusesATruncatedMessageAtEveryOffset) {
  TestServer server;
  const auto channel = server.NewChannel();
  const std::string wire = MakeRequest("instance_norm_64", {1, 64, 1}).SerializeAsString();
  for (std::size_t size = 0; size < wire.size(); ++size) {
    const grpc::Status status = RawCall(channel, kNormalize, wire.substr(0, size));
    ASSERT_EQ(status.error_code(), kInvalid) << size << ": " << status.error_message();
  }
  EXPECT_THAT(RawCall(channel, kNormalize, wire.substr(0, wire.size() - 1)).error_message(),
              HasSubstr("request: malformed protobuf in inputs[0]"));
  EXPECT_TRUE(RawCall(channel, kNormalize, wire).ok());
}

TEST(NormServiceRefusalTest, EveryMethodRefusesAMalformedMessage) {
  TestServer server;
  const auto channel = server.NewChannel();
  for (const auto* service : ServicesOf(channel, "")) {
    for (int i = 0; i < service->method_count(); ++i) {
      const auto& method = *service->method(i);
      if (method.client_streaming()) continue;
      const grpc::Status status = MakeCall(channel, "", PathOf(method), "\x0a\x7f").status;
      EXPECT_EQ(status.error_code(), kInvalid) << method.full_name();
      EXPECT_THAT(status.error_message(), HasSubstr("malformed protobuf")) << method.full_name();
    }
  }
  EXPECT_THAT(
      RawCall(channel, "/normd.v1.NormService/GetModel", std::string(5000, 'x')).error_message(),
      HasSubstr("request: 5000 bytes, wanted at most 4096"));
}

TEST(NormServiceRefusalTest, RefusesARequestOverTheByteLimitAndGoesOn) {
  TestServerOptions options;
  options.accept.max_request_bytes = 64 * 256;
  TestServer server(options);
  EXPECT_TRUE(Normalize(server, MakeRequest("instance_norm_64", {1, 64, 64})).ok());
  const grpc::Status little = Normalize(server, MakeRequest("instance_norm_64", {1, 64, 65}));
  EXPECT_EQ(little.error_code(), kInvalid);
  EXPECT_THAT(little.error_message(), HasSubstr("inputs: 16640 bytes, wanted at most 16384"));
  v1::ModelConfig wide;
  wide.mutable_linear_norm()->set_in_features(1);
  wide.mutable_linear_norm()->set_out_features(4096);
  wide.mutable_linear_norm()->set_bias(false);
  AddModel(server, "wide", wide,
           {{"linear.weight",
             *client::Tensor::Allocate(norm::DType::kFloat32, *Shape::Create({4096, 1}))}});
  EXPECT_THAT(Normalize(server, MakeRequest("wide", {2, 1})).error_message(),
              HasSubstr("outputs: 32768 bytes, wanted at most 16384"));
  EXPECT_TRUE(Normalize(server, MakeRequest("instance_norm_64", {1, 64, 64})).ok());
}

// Calls that compute, and calls that do not.
constexpr const char* kUnaryMethods[] = {kNormalize, "/normd.v1.NormService/ListModels",
                                         "/inference.GRPCInferenceService/ModelInfer",
                                         "/normd.v1.NormService/UnloadModel"};

double CallsOf(const TestServer& server, const std::string& method, const char* code) {
  return server.Metric(absl::StrCat("normd_requests_total{model=\"\",version=\"\",method=\"",
                                    method.substr(method.rfind('/') + 1), "\",code=\"", code,
                                    "\"}"));
}

// As gRPC itself would, which counts nothing.
TEST(NormServiceRefusalTest, CountsACallWhoseMessageIsFarOverTheLimit) {
  TestServerOptions options;
  options.accept.max_request_bytes = 64 * 256;
  TestServer server(options);
  const auto channel = server.NewChannel();
  const std::string wire = MakeRequest("instance_norm_64", {9, 64, 64}).SerializeAsString();
  for (const char* method : {kNormalize, "/inference.GRPCInferenceService/ModelInfer"}) {
    const Ending ending = MakeCall(channel, "", method, wire);
    EXPECT_EQ(ending.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << method;
    EXPECT_EQ(ending.status.error_message(),
              absl::StrCat("Received message larger than max (", wire.size(), " vs. 20480)"));
    EXPECT_EQ(ending.pushback, "") << "no attempt succeeds";
    server.WaitIdle();
    EXPECT_EQ(CallsOf(server, method, "RESOURCE_EXHAUSTED"), 1) << method;
  }
  StreamClient stream(server.stub());
  ASSERT_TRUE(stream.SendHeader(MakeRequest("instance_norm_64", {9, 64, 64})));
  ASSERT_TRUE(stream.SendChunk(std::string(20480, 'x')));
  EXPECT_THAT(stream.Finish().error_message(), HasSubstr("larger than max"));
  server.WaitIdle();
  EXPECT_EQ(server.MetricSum("normd_requests_total{model=\"instance_norm_64\",version=\"1\","
                             "method=\"NormalizeStream\",code=\"RESOURCE_EXHAUSTED\"}"),
            1);
  // A stream of requests tells it of the request, and goes on.
  InferStreamClient requests(channel);
  for (const std::int64_t samples : {9, 1, 9, 1}) {
    ASSERT_TRUE(requests.Send(ToInfer(MakeRequest("instance_norm_64", {samples, 64, 64}))));
    const auto response = requests.Read();
    ASSERT_TRUE(response.has_value());
    EXPECT_EQ(response->error_message().find("Received message larger than max") == 0, samples > 1)
        << response->error_message();
    EXPECT_EQ(response->error_message().empty(), samples == 1) << response->error_message();
  }
  requests.HalfClose();
  EXPECT_TRUE(requests.Finish().ok());
  server.WaitIdle();
  EXPECT_EQ(server.Metric("normd_inflight_bytes"), 0);
}

TEST(NormServiceRefusalTest, ACallWithoutAMessageIsRefused) {
  TestServer server;
  for (const char* method : kUnaryMethods) {
    grpc::GenericStub stub(server.NewChannel());
    grpc::CompletionQueue events;
    grpc::ClientContext context;
    const auto call = stub.PrepareCall(&context, method, &events);
    grpc::Status status;
    void* event = nullptr;
    bool ok = false;
    call->StartCall(&event);
    ASSERT_TRUE(events.Next(&event, &ok) && ok);
    call->WritesDone(&event);
    ASSERT_TRUE(events.Next(&event, &ok) && ok);
    call->Finish(&status, &event);
    ASSERT_TRUE(events.Next(&event, &ok) && ok);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << method;
    EXPECT_THAT(status.error_message(), HasSubstr("request: no whole message")) << method;
    server.WaitIdle();
    EXPECT_EQ(CallsOf(server, method, "INVALID_ARGUMENT"), 1) << method;
  }
  EXPECT_TRUE(Normalize(server, MakeRequest("instance_norm_64", {1, 64, 64})).ok());
}

// Four bytes.
std::string BigEndian(std::size_t value) {
  std::string bytes;
  for (const int shift : {24, 16, 8, 0}) bytes += static_cast<char>(value >> shift & 0xff);
  return bytes;
}

// A connection whose frames the test makes.
class FrameClient {
 public:
  explicit FrameClient(int port) : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in to = {};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<in_port_t>(port));
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    EXPECT_EQ(connect(socket_.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
    Send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + Frame(kSettings, 0, 0, "") +
         Frame(kSettings, kAck, 0, ""));
  }
  enum Kind : char { kData = 0, kHeaders = 1, kReset = 3, kSettings = 4 };
  enum Flag : char { kEndStream = 1, kAck = 1, kEndHeaders = 4 };
  static std::string Frame(Kind kind, int flags, char stream, const std::string& payload) {
    return BigEndian(payload.size()).substr(1) + static_cast<char>(kind) +
           static_cast<char>(flags) + std::string("\0\0\0", 3) + stream + payload;
  }
  // A call's headers, not compressed.
  static std::string Headers(const std::string& method, const std::string& timeout = "1H") {
    std::string block;
    for (const auto& [name, value] :
         std::vector<std::pair<std::string, std::string>>{{":method", "POST"},
                                                          {":scheme", "http"},
                                                          {":path", method},
                                                          {":authority", "localhost"},
                                                          {"content-type", "application/grpc"},
                                                          {"grpc-timeout", timeout},
                                                          {"te", "trailers"}}) {
      block += '\0';
      for (const std::string& text : {name, value}) block += static_cast<char>(text.size()) + text;
    }
    return Frame(kHeaders, kEndHeaders, 1, block);
  }
  void Send(const std::string& bytes) {
    EXPECT_EQ(send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  // Reads until `text` has come.
  bool Reads(const std::string& text) {
    std::string all;
    char bytes[4096];
    while (all.find(text) == std::string::npos) {
      const ssize_t got = recv(socket_.get(), bytes, sizeof(bytes), 0);
      if (got <= 0) return false;
      all.append(bytes, static_cast<std::size_t>(got));
    }
    return true;
  }

 private:
  const Descriptor socket_;
};

// Sends the head of a message of 8 bytes, or none, with each beginning, and then ends in either
// way.
TEST(NormServiceRefusalTest, ACutMessageIsRefusedUnlessItsClientHasLeft) {
  TestServer server;
  const std::string whole = std::string("\0\0\0\0\x08", 5) + "\x0a\x06" + "absent";
  for (const std::string method : kUnaryMethods) {
    for (std::size_t size = 0; size < whole.size(); ++size) {
      SCOPED_TRACE(method + ": " + std::to_string(size));
      const std::string part = whole.substr(0, size);
      FrameClient cut(server.port());
      cut.Send(FrameClient::Headers(method) +
               FrameClient::Frame(FrameClient::kData, FrameClient::kEndStream, 1, part));
      EXPECT_TRUE(cut.Reads("no whole message"));
      FrameClient left(server.port());
      left.Send(FrameClient::Headers(method) + FrameClient::Frame(FrameClient::kData, 0, 1, part) +
                FrameClient::Frame(FrameClient::kReset, 0, 1, std::string("\0\0\0\x08", 4)));
    }
    const auto calls = static_cast<double>(whole.size());
    WaitUntil([&] {
      return CallsOf(server, method, "CANCELLED") + CallsOf(server, method, "INVALID_ARGUMENT") >=
             2 * calls;
    });
    EXPECT_EQ(CallsOf(server, method, "INVALID_ARGUMENT"), calls) << method;
    EXPECT_EQ(CallsOf(server, method, "CANCELLED"), calls) << method;
  }
}

// Calls that wait: how they end in the queue, in which order they leave it, and when it is full.

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

constexpr const char* kInferMethods[] = {kNormalize, "/normd.v1.NormService/NormalizeStream",
                                         "/inference.GRPCInferenceService/ModelInfer",
                                         "/inference.GRPCInferenceService/ModelStreamInfer"};

double EndedWith(const TestServer& server, const std::string& method, const char* code) {
  return server.Metric(
      absl::StrCat("normd_requests_total{model=\"instance_norm_64\",version=\"1\",method=\"",
                   method.substr(method.rfind('/') + 1), "\",code=\"", code, "\"}"));
}

// What a call of `method` sends, each message with its length before it.
std::string MessagesOf(const std::string& method, v1::NormalizeRequest request) {
  std::vector<std::string> messages;
  if (method == kInferMethods[1]) {
    v1::NormalizeStreamRequest chunk;
    chunk.set_chunk(std::move(*request.mutable_inputs(0)->mutable_data()));
    v1::NormalizeStreamRequest header;
    *header.mutable_header() = std::move(request);
    messages = {header.SerializeAsString(), chunk.SerializeAsString()};
  } else {
    messages = {method == kNormalize ? request.SerializeAsString()
                                     : ToInfer(request).SerializeAsString()};
  }
  std::string all;
  for (const std::string& message : messages) all += '\0' + BigEndian(message.size()) + message;
  return all;
}

// A call that infers by `method`, to its end.
void CallOf(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
            const std::function<void(grpc::ClientContext&)>& configure) {
  const v1::NormalizeRequest request = MakeRequest("instance_norm_64", {1, 64, 16});
  if (method == kInferMethods[1]) {
    const auto stub = v1::NormService::NewStub(channel);
    StreamClient stream(*stub, configure);
    stream.SendHeader(request);
    stream.SendChunk(request.inputs(0).data());
    stream.Finish();
    return;
  }
  const std::string wire =
      method == kNormalize ? request.SerializeAsString() : ToInfer(request).SerializeAsString();
  MakeCall(channel, configure, method, wire);
}

// The client's clock runs out a little before the server's, so what the server sees is a client
// that leaves.
TEST(NormServiceQueueTest, ADeadlineThatPassesInTheQueueIsCountedAsOne) {
  for (const std::string method : kInferMethods) {
    TestServer server;
    StalledCall first(server, MakeRequest("instance_norm_64", {1, 64, 16}));
    const auto channel = server.NewChannel();
    EXPECT_TRUE(
        channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(30)));
    RunThreads(24, [&](int i) {
      CallOf(channel, method, [i](grpc::ClientContext& context) {
        context.set_deadline(std::chrono::system_clock::now() +
                             std::chrono::milliseconds(300 + 23 * i));
      });
    });
    WaitUntil([&] { return server.queue().waiting_requests() == 0; });
    server.gate().Open();
    server.WaitIdle();
    EXPECT_EQ(EndedWith(server, method, "CANCELLED"), 0) << method;
    EXPECT_GT(EndedWith(server, method, "DEADLINE_EXCEEDED"), 0) << method;
  }
}

// Each has spent up to a half of its time when it resets its call.
TEST(NormServiceQueueTest, AClientThatLeavesBeforeItsDeadlineIsCountedAsCancelled) {
  const v1::NormalizeRequest request = MakeRequest("instance_norm_64", {1, 64, 16});
  for (const std::string method : kInferMethods) {
    TestServer server;
    StalledCall first(server, request);
    std::deque<FrameClient> clients;
    constexpr std::int64_t kCalls = 8;
    for (std::int64_t i = 0; i < kCalls; ++i) {
      clients.emplace_back(server.port())
          .Send(FrameClient::Headers(method, absl::StrCat(10 + 90 * i, "S")) +
                FrameClient::Frame(FrameClient::kData, 0, 1, MessagesOf(method, request)));
    }
    WaitUntil([&] { return server.queue().waiting_requests() == kCalls; });
    for (FrameClient& client : clients) {
      client.Send(FrameClient::Frame(FrameClient::kReset, 0, 1, std::string("\0\0\0\x08", 4)));
    }
    WaitUntil([&] { return server.queue().waiting_requests() == 0; });
    server.gate().Open();
    server.WaitIdle();
    EXPECT_EQ(EndedWith(server, method, "CANCELLED"), kCalls) << method;
    EXPECT_EQ(EndedWith(server, method, "DEADLINE_EXCEEDED"), 0) << method;
  }
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
  WaitUntil([&] { return server.queue().waiting_requests() >= 1; });
  request.set_priority(v1::PRIORITY_HIGH);
  AsyncCall high(server.stub(), request);
  WaitUntil([&] { return server.queue().waiting_requests() >= 2; });
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
    WaitUntil([&] { return server.queue().waiting_requests() != 0; });
    second.context.TryCancel();
    EXPECT_EQ(second.Wait().error_code(), grpc::StatusCode::CANCELLED);
  }
  // The lane is still busy: only the cancellation can have taken it out.
  WaitUntil([&] { return server.queue().waiting_requests() == 0; });
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
  WaitUntil([&] { return server.queue().waiting_requests() != 0; });

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
