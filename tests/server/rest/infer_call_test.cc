// Inference over HTTP: the same bits and the same words as over gRPC.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "inference/grpc_service.grpc.pb.h"
#include "server/rest/rest_reply.h"
#include "tests/server/rest/rest_client.h"
#include "tests/server/rest/rest_requests.h"
#include "tests/server/rpc/test_server.h"

namespace normd::testing {
namespace {

using ::testing::HasSubstr;
using InferRequest = inference::ModelInferRequest;

TestServerOptions ForInference() {
  // Its clients are busy with other things before they send.
  TestServerOptions options = WithRest({.handshake_timeout = std::chrono::minutes(5)});
  options.accept.max_request_bytes = 1 << 20;
  return options;
}

class InferCallTest : public ::testing::Test {
 protected:
  grpc::Status OverGrpc(const InferRequest& request, inference::ModelInferResponse& response) {
    grpc::ClientContext context;
    return stub_->ModelInfer(&context, request, &response);
  }
  RestAnswer OverHttp(const InferRequest& request) {
    const RestBody body = ToBinary(request);
    return client_.Post(InferPath(request), body.body, body.headers);
  }

  TestServer server_{ForInference()};
  const std::unique_ptr<inference::GRPCInferenceService::Stub> stub_ =
      inference::GRPCInferenceService::NewStub(server_.NewChannel());
  RestClient client_{server_.http_port()};
};

std::string Compressed(const std::string& text, int window_bits) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, window_bits, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(out.size() - stream.avail_out);
  deflateEnd(&stream);
  return out;
}

TEST_F(InferCallTest, GivesTheBitsOfGrpcInEachForm) {
  struct Case {
    const char* model;
    std::vector<std::int64_t> shape;
  };
  for (const Case& one :
       {Case{"layer_norm_1024", {1, 1024}}, Case{"layer_norm_1024", {40, 1024}},
        Case{"instance_norm_64", {2, 64, 5, 7}}, Case{"group_norm_64_8", {1, 64, 17, 19}}}) {
    InferRequest request = ToInfer(MakeRequest(one.model, one.shape));
    request.set_id("of the client");
    inference::ModelInferResponse want;
    ASSERT_TRUE(OverGrpc(request, want).ok());
    const RestBody body = ToBinary(request);
    const std::string path = InferPath(request);
    for (const std::string& text :
         {PostText(path, body.body, body.headers), ChunkedText(path, body.body, 1000, body.headers),
          ChunkedText(path, body.body, 100000, body.headers),
          PostText(path, Compressed(body.body, 31), body.headers + "Content-Encoding: gzip\r\n"),
          ChunkedText(path, Compressed(body.body, 15), 333,
                      body.headers + "Content-Encoding: deflate\r\n")}) {
      const RestAnswer answer = client_.Call(text);
      ASSERT_EQ(answer.status, 200) << answer.body;
      EXPECT_TRUE(BinaryOf(answer) == want.raw_output_contents(0)) << one.model;
      const nlohmann::json json = JsonOf(answer);
      EXPECT_EQ(json["model_name"], one.model);
      EXPECT_EQ(json["model_version"], want.model_version());
      EXPECT_EQ(json["id"], "of the client");
      EXPECT_EQ(json["outputs"][0]["name"], want.outputs(0).name());
    }
    // The numbers that come as text are the same, and so are those that leave as text.
    const RestAnswer answer = client_.Post(path, ToText(request));
    ASSERT_EQ(answer.status, 200) << answer.body;
    const auto values = JsonOf(answer)["outputs"][0]["data"].get<std::vector<float>>();
    const std::string& bytes = want.raw_output_contents(0);
    ASSERT_EQ(values.size() * sizeof(float), bytes.size());
    EXPECT_EQ(std::memcmp(values.data(), bytes.data(), bytes.size()), 0) << one.model;
  }
}

// The second body lies in the memory of the first, which it does not fill.
TEST_F(InferCallTest, TakesNothingOfTheBodyBefore) {
  const InferRequest request = ToInfer(MakeRequest("layer_norm_1024", {60, 1024}));
  const RestBody whole = ToBinary(request);
  ASSERT_EQ(client_.Post(InferPath(request), whole.body, whole.headers).status, 200);
  const RestAnswer cut =
      client_.Post(InferPath(request), whole.body.substr(0, whole.body.size() - 4), whole.headers);
  EXPECT_EQ(cut.status, 400) << cut.body;
}

TEST_F(InferCallTest, TakesARequestHoweverItIsCut) {
  const InferRequest request = ToInfer(MakeRequest("layer_norm_1024", {1, 1024}));
  const RestBody body = ToBinary(request);
  inference::ModelInferResponse want;
  ASSERT_TRUE(OverGrpc(request, want).ok());
  for (const std::string& text : {PostText(InferPath(request), body.body, body.headers),
                                  ChunkedText(InferPath(request), body.body, 77, body.headers)}) {
    for (const std::size_t step : {1, 2, 3, 100, 4095, 4096, 4097}) {
      for (std::size_t at = 0; at < text.size(); at += step) {
        ASSERT_TRUE(client_.Send(text.substr(at, step)));
      }
      const RestAnswer answer = client_.Read();
      ASSERT_EQ(answer.status, 200) << answer.body;
      EXPECT_TRUE(BinaryOf(answer) == want.raw_output_contents(0)) << step;
    }
  }
}

TEST_F(InferCallTest, AnswersPipelinedRequestsInOrder) {
  std::string text;
  for (int i = 0; i < 50; ++i) {
    InferRequest request = ToInfer(MakeRequest("layer_norm_1024", {1 + i % 3, 1024}));
    request.set_id(absl::StrCat("number ", i));
    if (i % 7 == 3) request.set_model_name("absent");
    const RestBody body = ToBinary(request);
    text += i % 2 == 0 ? PostText(InferPath(request), body.body, body.headers)
                       : ChunkedText(InferPath(request), body.body, 500, body.headers);
  }
  std::thread sender([&] { EXPECT_TRUE(client_.Send(text)); });
  for (int i = 0; i < 50; ++i) {
    const RestAnswer answer = client_.Read();
    EXPECT_EQ(answer.status, i % 7 == 3 ? 404 : 200);
    if (answer.status == 200) {
      EXPECT_EQ(JsonOf(answer)["id"], absl::StrCat("number ", i));
    }
  }
  sender.join();
}

// One list of bad requests for both protocols.
TEST_F(InferCallTest, RefusesWithTheWordsOfGrpc) {
  const std::vector<std::function<void(InferRequest&)>> faults = {
      [](InferRequest& r) { r.set_model_name("absent"); },
      [](InferRequest& r) { r.set_model_version("7"); },
      [](InferRequest& r) { r.set_model_version("latest"); },
      [](InferRequest& r) { r.mutable_inputs(0)->set_name("nope"); },
      [](InferRequest& r) { r.mutable_inputs(0)->set_datatype("FP31"); },
      [](InferRequest& r) { r.mutable_inputs(0)->set_datatype("INT64"); },
      [](InferRequest& r) { r.mutable_inputs(0)->set_shape(0, 3); },
      [](InferRequest& r) { r.mutable_inputs(0)->set_shape(1, 1023); },
      [](InferRequest& r) { r.mutable_inputs(0)->set_shape(0, -1); },
      [](InferRequest& r) { r.mutable_inputs(0)->add_shape(1); },
      [](InferRequest& r) { r.mutable_inputs(0)->clear_shape(); },
      [](InferRequest& r) { r.mutable_raw_input_contents(0)->pop_back(); },
      [](InferRequest& r) { r.add_outputs()->set_name("nope"); },
      [](InferRequest& r) { (*r.mutable_parameters())["priority"].set_int64_param(9); },
      [](InferRequest& r) { (*r.mutable_parameters())["timeout"].set_int64_param(-1); },
      [](InferRequest& r) { (*r.mutable_parameters())["timeout"].set_string_param("1"); },
      [](InferRequest& r) {
        r.add_outputs()->set_name("y");
        (*r.mutable_outputs(0)->mutable_parameters())["classification"].set_int64_param(3);
      },
      [](InferRequest& r) {
        (*r.mutable_inputs(0)->mutable_parameters())["shared_memory_region"].set_string_param("r");
        (*r.mutable_inputs(0)->mutable_parameters())["shared_memory_byte_size"].set_int64_param(
            8192);
        r.clear_raw_input_contents();
      },
  };
  for (std::size_t i = 0; i < faults.size(); ++i) {
    InferRequest request = ToInfer(MakeRequest("layer_norm_1024", {2, 1024}));
    faults[i](request);
    inference::ModelInferResponse response;
    const grpc::Status want = OverGrpc(request, response);
    ASSERT_FALSE(want.ok()) << i;
    const RestAnswer answer = OverHttp(request);
    EXPECT_EQ(ErrorOf(answer), want.error_message()) << i;
    EXPECT_EQ(answer.status, HttpStatusOf(static_cast<absl::StatusCode>(want.error_code()))) << i;
    EXPECT_EQ(answer.headers.at("content-type"), "application/json");
  }
  // The connection serves on.
  EXPECT_EQ(OverHttp(ToInfer(MakeRequest("layer_norm_1024", {2, 1024}))).status, 200);
}

TEST_F(InferCallTest, BoundsBodies) {
  const std::string path = "/v2/models/layer_norm_1024/infer";
  const std::string large(std::size_t{2} << 20, ' ');
  for (const std::string& text : {PostText(path, large), ChunkedText(path, large, 1 << 16)}) {
    RestClient client(server_.http_port());
    std::thread sender([&] { client.Send(text); });
    const RestAnswer answer = client.Read();
    EXPECT_EQ(answer.status, 413);
    EXPECT_THAT(ErrorOf(answer), HasSubstr("wanted at most 1052672"));
    EXPECT_EQ(answer.headers.at("connection"), "close");
    sender.join();
  }
  // A bomb: 64 MiB in 64 KiB.
  const std::string bomb = Compressed(std::string(std::size_t{64} << 20, ' '), 31);
  const RestAnswer answer = client_.Post(path, bomb, "Content-Encoding: gzip\r\n");
  EXPECT_EQ(answer.status, 400);
  EXPECT_THAT(ErrorOf(answer), HasSubstr("more than 1052672 bytes when inflated"));
  EXPECT_EQ(client_.Post(path, "not gzip", "Content-Encoding: gzip\r\n").status, 400);
}

TEST_F(InferCallTest, RepeatsIdsAndCountsAsInfer) {
  const RestBody body = ToBinary(ToInfer(MakeRequest("layer_norm_1024", {2, 1024})));
  const std::string trace = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01";
  const RestAnswer answer =
      client_.Post("/v2/models/layer_norm_1024/infer", body.body,
                   body.headers + "X-Request-Id: mine\r\ntraceparent: " + trace + "\r\n");
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.headers.at("x-request-id"), "mine");
  EXPECT_EQ(answer.headers.at("traceparent"), trace);
  server_.WaitIdle();
  EXPECT_EQ(server_.Metric("normd_requests_total{model=\"layer_norm_1024\",version=\"1\","
                           "method=\"Infer\",code=\"OK\"}"),
            1);
}

// Cuts the text anywhere, and has every header that cannot be served.
TEST_F(InferCallTest, ARequestThatCannotBeReadCountsWithTheModelOfItsPath) {
  const InferRequest request = ToInfer(MakeRequest("layer_norm_1024", {1, 1024}));
  const std::string text = ToText(request);
  const std::string path = InferPath(request);
  int refused = 0;
  const auto expect_refusal = [&](const std::string& sent) {
    RestClient client(server_.http_port());
    const RestAnswer answer = client.Call(sent);
    EXPECT_TRUE(answer.status == 400 || answer.status == 413) << answer.status << answer.body;
    ++refused;
  };
  for (std::size_t size = 0; size < text.size(); size += 1 + text.size() / 100) {
    expect_refusal(PostText(path, text.substr(0, size)));
    expect_refusal(ChunkedText(path, text.substr(0, size), 999));
  }
  for (const char* const header :
       {"Inference-Header-Content-Length: 5", "Inference-Header-Content-Length: 99999",
        "Inference-Header-Content-Length: x", "Content-Encoding: gzip",
        "Content-Encoding: deflate"}) {
    expect_refusal(PostText(path, text, absl::StrCat(header, "\r\n")));
  }
  expect_refusal(PostText(path, std::string(3 << 20, ' ')));
  expect_refusal(absl::StrCat("POST ", path, " HTTP/1.1\r\nHost: x\r\n",
                              "Transfer-Encoding: chunked\r\n\r\nno length\r\n"));
  EXPECT_EQ(client_.Post(path, text, "Content-Encoding: br\r\n").status, 501);
  EXPECT_EQ(client_.Post("/v2/models/absent/infer", "{").status, 400);
  server_.WaitIdle();
  const auto calls = [&](const std::string& labels) {
    return server_.Metric("normd_requests_total{" + labels + "\"}");
  };
  const std::string of_model = "model=\"layer_norm_1024\",version=\"1\",method=\"Infer\",code=\"";
  EXPECT_EQ(calls(of_model + "INVALID_ARGUMENT"), refused);
  EXPECT_EQ(calls(of_model + "UNIMPLEMENTED"), 1);
  EXPECT_EQ(calls("model=\"\",version=\"\",method=\"Infer\",code=\"INVALID_ARGUMENT"), 1);
}

TEST_F(InferCallTest, CompressesLongTextForClientsThatCanReadIt) {
  const std::string text = ToText(ToInfer(MakeRequest("layer_norm_1024", {2, 1024})));
  const std::string path = "/v2/models/layer_norm_1024/infer";
  const RestAnswer plain = client_.Post(path, text);
  EXPECT_FALSE(plain.headers.contains("content-encoding"));
  for (const auto& [accepted, encoding] :
       {std::pair{"gzip", "gzip"}, {"deflate", "deflate"}, {"br, gzip;q=0.5", "gzip"}}) {
    const RestAnswer answer =
        client_.Post(path, text, absl::StrCat("Accept-Encoding: ", accepted, "\r\n"));
    EXPECT_EQ(answer.headers.at("content-encoding"), encoding);
    std::string inflated(plain.body.size() + 1, '\0');
    z_stream stream{};
    ASSERT_EQ(inflateInit2(&stream, 15 + 32), Z_OK);
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(answer.body.data()));
    stream.avail_in = static_cast<uInt>(answer.body.size());
    stream.next_out = reinterpret_cast<Bytef*>(inflated.data());
    stream.avail_out = static_cast<uInt>(inflated.size());
    EXPECT_EQ(inflate(&stream, Z_FINISH), Z_STREAM_END);
    inflated.resize(inflated.size() - stream.avail_out);
    inflateEnd(&stream);
    EXPECT_TRUE(inflated == plain.body);
  }
  EXPECT_FALSE(client_.Post(path, text, "Accept-Encoding: gzip;q=0\r\n")
                   .headers.contains("content-encoding"));
}

TEST_F(InferCallTest, AClientThatLeavesIsNotWaitedFor) {
  server_.gate().Close();
  const InferRequest first = ToInfer(MakeRequest("layer_norm_1024", {64, 1024}));
  const RestBody body = ToBinary(first);
  // One is in the lane, and others wait.
  RestClient inside(server_.http_port());
  ASSERT_TRUE(inside.Send(PostText(InferPath(first), body.body, body.headers)));
  server_.gate().WaitForStalled(1);
  {
    std::vector<std::unique_ptr<RestClient>> waiting;
    for (int i = 0; i < 8; ++i) {
      waiting.push_back(std::make_unique<RestClient>(server_.http_port()));
      ASSERT_TRUE(waiting.back()->Send(PostText(InferPath(first), body.body, body.headers)));
    }
    while (server_.queue().waiting_requests() < 8) std::this_thread::yield();
  }
  while (server_.queue().waiting_requests() > 0) std::this_thread::yield();
  server_.gate().Open();
  EXPECT_EQ(inside.Read().status, 200);
  server_.WaitIdle();
  EXPECT_EQ(server_.Metric("normd_requests_total{model=\"layer_norm_1024\",version=\"1\","
                           "method=\"Infer\",code=\"CANCELLED\"}"),
            8);
}

}  // namespace
}  // namespace normd::testing
