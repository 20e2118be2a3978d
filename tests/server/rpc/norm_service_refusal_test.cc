// What Normalize and the calls beside it refuse, whatever the load.

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/descriptor.h"
#include "tests/server/rpc/raw_client.h"
#include "tests/server/rpc/test_server.h"
#include "tests/server/rpc/unary_call.h"

namespace normd {
namespace {

using ::testing::HasSubstr;
using testing::MakeRequest;
using testing::Normalize;
using testing::RawCall;
using testing::TestServer;
using testing::TestServerOptions;

constexpr char kNormalize[] = "/normd.v1.NormService/Normalize";

struct BadInput {
  std::string name;
  std::function<void(v1::NormalizeRequest&)> change;  // To a valid request, [2, 64, 4, 4].
  grpc::StatusCode code;
  std::vector<std::string> message;  // What it must contain.
};

void SetShape(v1::NormalizeRequest& request, const std::vector<std::int64_t>& shape) {
  request.mutable_inputs(0)->mutable_shape()->Assign(shape.begin(), shape.end());
}

constexpr std::int64_t kHuge = std::int64_t{1} << 62;
constexpr auto kInvalid = grpc::StatusCode::INVALID_ARGUMENT;
constexpr auto kNotFound = grpc::StatusCode::NOT_FOUND;

std::vector<BadInput> BadTensors() {
  auto shape = [](std::vector<std::int64_t> dims) {
    return [dims](v1::NormalizeRequest& r) { SetShape(r, dims); };
  };
  return {
      {"UnknownPriority",
       [](auto& r) { r.set_priority(static_cast<v1::Priority>(4)); },
       kInvalid,
       {"priority: 4, wanted from 0 to 3"}},
      {"NegativeQueueTimeout",
       [](auto& r) { r.set_queue_timeout_ns(-1); },
       kInvalid,
       {"queue_timeout_ns: -1, wanted 0 or more"}},
      {"RankZero", shape({}), kInvalid, {"shape: []", "at least 2"}},
      {"RankOne", shape({64}), kInvalid, {"shape: [64]", "at least 2"}},
      {"TooManyDimensions",
       shape(std::vector<std::int64_t>(17, 1)),
       kInvalid,
       {"shape", "most 16"}},
      {"NegativeDimension", shape({2, 64, -4, 4}), kInvalid, {"shape[2]: -4"}},
      {"ZeroDimension", shape({2, 64, 0, 4}), kInvalid, {"shape[2]: 0", "at least 1"}},
      {"ZeroChannels", shape({2, 0, 4, 4}), kInvalid, {"shape[1]: 0"}},
      {"HugeDimension", shape({kHuge, 64}), kInvalid, {"shape", "2^63 elements"}},
      {"HugeDimensions", shape({2, 64, kHuge, kHuge}), kInvalid, {"shape", "2^63"}},
      {"HugeBytes", shape({kHuge / 64, 64}), kInvalid, {"shape", "2^63 bytes"}},
      {"HugeDimensionBesideZero", shape({0, 64, kHuge, 4}), kInvalid, {"shape", "2^63"}},
      {"WrongChannels", shape({2, 63, 4, 4}), kInvalid, {"shape[1]: 63 channels", "wanted 64"}},
      {"TooFewBytes",
       [](v1::NormalizeRequest& r) { r.mutable_inputs(0)->mutable_data()->pop_back(); },
       kInvalid,
       {"data: 8191 bytes, wanted 8192", "[2, 64, 4, 4]", "float32"}},
      {"TooManyBytes",
       [](v1::NormalizeRequest& r) { r.mutable_inputs(0)->mutable_data()->append("x"); },
       kInvalid,
       {"data: 8193 bytes, wanted 8192"}},
      {"NoData",
       [](v1::NormalizeRequest& r) { r.mutable_inputs(0)->clear_data(); },
       kInvalid,
       {"data: 0 bytes, wanted 8192"}},
      {"DataOfAnEmptyTensor", shape({0, 64, 4, 4}), kInvalid, {"data: 8192 bytes, wanted 0"}},
      {"NoDtype",
       [](v1::NormalizeRequest& r) { r.mutable_inputs(0)->clear_dtype(); },
       kInvalid,
       {"dtype", "wanted FLOAT32"}},
      {"UnknownDtype",
       [](v1::NormalizeRequest& r) { r.mutable_inputs(0)->set_dtype(v1::DataType(99)); },
       kInvalid,
       {"dtype: 99", "wanted FLOAT32"}},
      {"DtypeTheModelRefuses",
       [](v1::NormalizeRequest& r) {
         r.set_model("group_norm_320_32_silu_last");
         r.mutable_inputs(0)->set_dtype(v1::FLOAT64);
       },
       kInvalid,
       {"dtype: FLOAT64", "FLOAT16"}},
  };
}

std::vector<BadInput> BadNames() {
  return {
      {"NoInput", [](v1::NormalizeRequest& r) { r.clear_inputs(); }, kInvalid, {"inputs: none"}},
      {"TwoInputsOfOneName",
       [](v1::NormalizeRequest& r) {
         r.mutable_inputs(0)->set_name("x");
         *r.add_inputs() = r.inputs(0);
       },
       kInvalid,
       {"inputs[1].name: \"x\" twice"}},
      {"ASecondInputThatTheModelDoesNotTake",
       [](v1::NormalizeRequest& r) {
         r.mutable_inputs(0)->set_name("x");
         r.add_inputs()->set_name("y");
       },
       kInvalid,
       {"inputs[1].name: \"y\", wanted \"x\""}},
      {"TwoInputsWithoutNames",
       [](v1::NormalizeRequest& r) { *r.add_inputs() = r.inputs(0); },
       kInvalid,
       {"inputs[0].name: \"\", wanted \"x\""}},
      {"ThreeInputs",
       [](v1::NormalizeRequest& r) {
         r.mutable_inputs(0)->set_name("x");
         r.add_inputs()->set_name("x");
         r.add_inputs()->set_name("z");
       },
       kInvalid,
       {"inputs[2].name: \"z\", wanted \"x\""}},
      {"MoreInputsThanAnyModelTakes",
       [](v1::NormalizeRequest& r) {
         for (int i = 0; i < 32; ++i) r.add_inputs();
       },
       kInvalid,
       {"inputs: more than 32, wanted at most 32"}},
      {"UnknownInput",
       [](v1::NormalizeRequest& r) { r.mutable_inputs(0)->set_name("q"); },
       kInvalid,
       {"inputs[0].name: \"q\", wanted \"x\""}},
      {"UnknownModel",
       [](v1::NormalizeRequest& r) { r.set_model("nothing"); },
       kNotFound,
       {"model: nothing"}},
      {"UnknownVersion", [](v1::NormalizeRequest& r) { r.set_version(7); }, kNotFound, {"7"}},
      {"NegativeVersion",
       [](v1::NormalizeRequest& r) { r.set_version(-1); },
       kInvalid,
       {"version: -1"}},
      {"NoModel", [](v1::NormalizeRequest& r) { r.clear_model(); }, kInvalid, {"model: \"\""}},
      {"ModelThatIsAPath",
       [](v1::NormalizeRequest& r) { r.set_model("../x"); },
       kInvalid,
       {"model: \"../x\"", "letters"}},
      {"ModelWithANewline",
       [](v1::NormalizeRequest& r) { r.set_model("a\nb"); },
       kInvalid,
       {"model: \"a\\nb\""}},
      {"LongModel",
       [](v1::NormalizeRequest& r) { r.set_model(std::string(5000, 'm')); },
       kInvalid,
       {"model: 5000 bytes", "at most 128"}},
  };
}

std::vector<BadInput> BadInputs() {
  std::vector<BadInput> all = BadTensors();
  for (BadInput& bad : BadNames()) all.push_back(std::move(bad));
  return all;
}

// One server for all of them: that it answers the last as the first is part of the promise.
// One server for all of them: that it answers the last as the first is part of the promise.
TEST(NormServiceRefusalTest, RefusesEachBadInputWithItsErrorAndGoesOn) {
  TestServer server;
  for (const BadInput& bad : BadInputs()) {
    SCOPED_TRACE(bad.name);
    v1::NormalizeRequest request = MakeRequest("instance_norm_64", {2, 64, 4, 4});
    bad.change(request);
    const grpc::Status status = Normalize(server, request);
    EXPECT_EQ(status.error_code(), bad.code) << status.error_message();
    for (const std::string& part : bad.message) {
      EXPECT_THAT(status.error_message(), HasSubstr(part));
    }
    EXPECT_TRUE(Normalize(server, MakeRequest("instance_norm_64", {2, 64, 4, 4})).ok());
  }
}

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
  // Far over it: the transport refuses before the message is read.
  const grpc::Status far = Normalize(server, MakeRequest("instance_norm_64", {9, 64, 64}));
  EXPECT_EQ(far.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(far.error_message(), HasSubstr("larger than max"));
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
}  // namespace normd
