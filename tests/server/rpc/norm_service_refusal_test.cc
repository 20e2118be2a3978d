// What Normalize and the calls beside it refuse, whatever the load.

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/descriptor.h"
#include "tests/server/rpc/access_calls.h"
#include "tests/server/rpc/raw_client.h"
#include "tests/server/rpc/stream_client.h"
#include "tests/server/rpc/test_server.h"

namespace normd::testing {
namespace {

using ::testing::HasSubstr;

constexpr char kNormalize[] = "/normd.v1.NormService/Normalize";

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

TEST(NormServiceRefusalTest, RefusesAMalformedControlMessageAsInvalid) {
  TestServer server;
  const auto channel = server.NewChannel();
  for (const char* method : {"ListModels", "GetModel", "LoadModel", "UnloadModel", "GetServerInfo",
                             "ListSharedMemory"}) {
    const grpc::Status status =
        RawCall(channel, absl::StrCat("/normd.v1.NormService/", method), "\x0a\x7f");
    EXPECT_EQ(status.error_code(), kInvalid) << method;
    EXPECT_THAT(status.error_message(), HasSubstr("request: malformed protobuf")) << method;
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
  EXPECT_THAT(little.error_message(), HasSubstr("data: 16640 bytes, wanted at most 16384"));
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
    return std::string("\0\0", 2) + static_cast<char>(payload.size()) + static_cast<char>(kind) +
           static_cast<char>(flags) + std::string("\0\0\0", 3) + stream + payload;
  }
  // A call's headers, not compressed.
  static std::string Headers(const std::string& method) {
    std::string block;
    for (const auto& [name, value] :
         std::vector<std::pair<std::string, std::string>>{{":method", "POST"},
                                                          {":scheme", "http"},
                                                          {":path", method},
                                                          {":authority", "localhost"},
                                                          {"content-type", "application/grpc"},
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
    while (CallsOf(server, method, "CANCELLED") + CallsOf(server, method, "INVALID_ARGUMENT") <
           2 * calls) {
      std::this_thread::yield();
    }
    EXPECT_EQ(CallsOf(server, method, "INVALID_ARGUMENT"), calls) << method;
    EXPECT_EQ(CallsOf(server, method, "CANCELLED"), calls) << method;
  }
}

}  // namespace
}  // namespace normd::testing
