// The front end's port: methods beside inference, rights, connections, limits, and its end.

#include "server/rest/rest_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/http/connection_end.h"
#include "tests/server/identity/identity_files.h"
#include "tests/server/rest/rest_client.h"
#include "tests/server/rest/rest_requests.h"
#include "tests/server/rpc/infer_requests.h"
#include "tests/server/rpc/test_server.h"

namespace normd {
namespace {

using testing::BearerOf;
using testing::ErrorOf;
using ::testing::HasSubstr;
using testing::IdentityFolder;
using testing::JsonOf;
using testing::MakeRequest;
using testing::PostText;
using testing::RestAnswer;
using testing::RestBody;
using testing::RestClient;
using ::testing::StartsWith;
using testing::TestServer;
using testing::TestServerOptions;
using testing::ToBinary;
using testing::ToInfer;

constexpr char kInfer[] = "/v2/models/layer_norm_1024/infer";

TestServerOptions WithRest(RestOptions rest = {}) {
  TestServerOptions options;
  options.rest = std::move(rest);
  return options;
}

// A request that the server takes, whole.
std::string GoodRequest(std::int64_t rows = 1, const std::string& headers = "") {
  const RestBody body = ToBinary(ToInfer(MakeRequest("layer_norm_1024", {rows, 1024})));
  return PostText(kInfer, body.body, body.headers + headers);
}

void WaitForOneInfer(TestServer& server) {
  for (int i = 0; i < 3000; ++i) {
    if (server.Metric("normd_requests_total{model=\"layer_norm_1024\",version=\"1\","
                      "method=\"Infer\",code=\"OK\"}") >= 1) {
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  FAIL() << "no request was answered";
}

TEST(RestServerTest, DescribesServerAndModels) {
  TestServer server(WithRest());
  RestClient client(server.http_port());
  EXPECT_EQ(client.Get("/v2/health/live").body, "{\"live\":true}");
  EXPECT_EQ(client.Get("/v2/health/ready").body, "{\"ready\":true}");
  EXPECT_EQ(client.Get("/v2/models/layer_norm_1024/ready").body,
            "{\"name\":\"layer_norm_1024\",\"ready\":true}");
  const RestAnswer absent = client.Get("/v2/models/absent/ready");
  EXPECT_EQ(absent.status, 400);
  EXPECT_EQ(absent.body, "{\"name\":\"absent\",\"ready\":false}");
  EXPECT_EQ(JsonOf(client.Get("/v2"))["name"], "normd");
  const auto metadata = JsonOf(client.Get("/v2/models/layer_norm_1024"));
  EXPECT_EQ(metadata["name"], "layer_norm_1024");
  EXPECT_EQ(metadata["inputs"][0]["datatype"], "FP32");
  EXPECT_EQ(metadata["inputs"][0]["shape"][0], -1);
  EXPECT_EQ(client.Get("/v2/models/layer_norm_1024/versions/1").status, 200);
  EXPECT_EQ(client.Get("/v2/models/layer_norm_1024/versions/9").status, 404);
  EXPECT_EQ(ErrorOf(client.Get("/v2/models/layer_norm_1024/versions/x")),
            "version: \"x\", wanted a number from 1, a version_alias of the model's config, or "
            "nothing");
  EXPECT_EQ(JsonOf(client.Get("/v2/models/layer_norm_1024/config"))["max_batch_size"], 0);
  const auto one = JsonOf(client.Get("/v2/models/layer_norm_1024/stats"));
  EXPECT_EQ(one["model_stats"].size(), 1u);
  EXPECT_EQ(one["model_stats"][0]["inference_count"], 0);
  EXPECT_GT(JsonOf(client.Get("/v2/models/stats"))["model_stats"].size(), 5u);
  EXPECT_EQ(JsonOf(client.Get("/v2/logging"))["log_file"], "");
  EXPECT_EQ(JsonOf(client.Get("/v2/trace/setting"))["trace_level"][0], "OFF");
  EXPECT_EQ(client.Post("/v2/trace/setting", R"({"trace_level":["TIMESTAMPS"]})").status, 501);
  EXPECT_EQ(client.Post("/v2/logging", "{\"log_info\":false}").status, 501);
}

TEST(RestServerTest, LoadsAndUnloads) {
  TestServer server(WithRest());
  RestClient client(server.http_port());
  const auto index = JsonOf(client.Post("/v2/repository/index", ""));
  ASSERT_TRUE(index.is_array());
  EXPECT_EQ(index[0]["state"], "READY");
  const RestAnswer unloaded = client.Post("/v2/repository/models/layer_norm_1024/unload",
                                          R"({"parameters":{"unload_dependents":false}})");
  EXPECT_EQ(unloaded.status, 200) << unloaded.body;
  EXPECT_EQ(unloaded.body, "");
  EXPECT_EQ(client.Get("/v2/models/layer_norm_1024/ready").status, 400);
  EXPECT_EQ(JsonOf(client.Post("/v2/repository/index", "{\"ready\":true}")).size(),
            index.size() - 1);
  EXPECT_EQ(client.Post("/v2/repository/models/layer_norm_1024/load", "{}").status, 200);
  EXPECT_EQ(client.Get("/v2/models/layer_norm_1024/ready").status, 200);
  EXPECT_EQ(client.Post("/v2/repository/models/absent/load", "").status, 404);
  EXPECT_EQ(client.Post("/v2/repository/models/%2e%2e/load", "").status, 400);
  const RestAnswer changed = client.Post("/v2/repository/models/layer_norm_1024/load",
                                         R"({"parameters":{"config":"{}"}})");
  EXPECT_EQ(changed.status, 501);
  EXPECT_THAT(ErrorOf(changed), StartsWith("parameters[\"config\"], wanted none"));
  EXPECT_EQ(client.Post("/v2/repository/index", "[]").status, 400);
  EXPECT_EQ(client.Post("/v2/repository/index", std::string(5000, ' ')).status, 413);
}

TEST(RestServerTest, RegistersSharedMemory) {
  TestServerOptions options = WithRest();
  options.shared_memory = true;
  TestServer server(options);
  RestClient client(server.http_port());
  EXPECT_EQ(client.Get("/v2/systemsharedmemory/status").body, "[]");
  const RestAnswer absent = client.Post("/v2/systemsharedmemory/region/r/register",
                                        R"({"key":"/normd_absent","offset":0,"byte_size":64})");
  EXPECT_NE(absent.status, 200);
  EXPECT_THAT(ErrorOf(absent), HasSubstr("normd_absent"));
  EXPECT_EQ(client.Get("/v2/systemsharedmemory/region/r/status").status, 404);
  EXPECT_EQ(client.Post("/v2/systemsharedmemory/region/r/unregister", "").status, 404);
  EXPECT_EQ(client.Post("/v2/systemsharedmemory/unregister", "").status, 200);
  EXPECT_EQ(
      client.Post("/v2/systemsharedmemory/unregister", "", "normd-in-use: perhaps\r\n").status,
      400);
  EXPECT_EQ(client
                .Post("/v2/cudasharedmemory/region/r/register",
                      R"({"raw_handle":{"b64":"!"},"device_id":0,"byte_size":1})")
                .status,
            400);
}

TEST(RestServerTest, AnswersOtherVerbs) {
  TestServer server(WithRest());
  RestClient client(server.http_port());
  client.Send("HEAD /v2 HTTP/1.1\r\nHost: h\r\n\r\n");
  const RestAnswer head = client.Read(true);
  EXPECT_EQ(head.status, 200);
  EXPECT_NE(head.headers.at("content-length"), "0");
  const RestAnswer options = client.Call("OPTIONS /v2 HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_EQ(options.status, 204);
  EXPECT_EQ(options.headers.at("allow"), "GET, HEAD, OPTIONS");
  EXPECT_FALSE(options.headers.contains("access-control-allow-origin"));
  const RestAnswer wrong = client.Post("/v2", "body");
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.headers.at("allow"), "GET, HEAD, OPTIONS");
  EXPECT_EQ(client.Post("/v2/absent", "body").status, 404);
  EXPECT_EQ(client.Get("/v2", "Connection: close\r\n").headers.at("connection"), "close");
  EXPECT_EQ(client.Read().status, 0);
}

TEST(RestServerTest, TakesOldClientsOneByOne) {
  TestServer server(WithRest());
  RestClient client(server.http_port());
  const RestAnswer kept = client.Call("GET /v2 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  EXPECT_EQ(kept.headers.at("connection"), "keep-alive");
  EXPECT_EQ(client.Call("GET /v2 HTTP/1.0\r\n\r\n").status, 200);
  EXPECT_EQ(client.Read().status, 0);
}

TEST(RestServerTest, AsksForTheBodyOfWhoExpectsIt) {
  TestServer server(WithRest());
  RestClient client(server.http_port());
  const RestBody body = ToBinary(ToInfer(MakeRequest("layer_norm_1024", {1, 1024})));
  const auto head = [&](const std::string& path) {
    return absl::StrCat("POST ", path, " HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\n",
                        body.headers, "Content-Length: ", body.body.size(), "\r\n\r\n");
  };
  EXPECT_EQ(client.Call(head(kInfer)).status, 100);
  EXPECT_EQ(client.Call(body.body).status, 200);
  // What is refused is not asked for.
  EXPECT_EQ(client.Call(head("/v2/absent")).status, 404);
  EXPECT_EQ(client.Read().status, 0);
}

// A page that a browser has from elsewhere must not reach a server on the browser's machine.
TEST(RestServerTest, ServesBrowsersOfAllowedOriginsAlone) {
  for (const char* allowed : {"", "https://a.example,https://b.example", "*"}) {
    RestOptions rest;
    rest.allow_origin = allowed;
    TestServer server(WithRest(rest));
    RestClient client(server.http_port());
    const bool any = std::string(allowed) == "*";
    const bool some = std::string(allowed) != "";
    const RestAnswer good = client.Get("/v2", "Origin: https://b.example\r\n");
    EXPECT_EQ(good.status, some ? 200 : 403);
    if (some) {
      EXPECT_EQ(good.headers.at("access-control-allow-origin"), any ? "*" : "https://b.example");
      EXPECT_EQ(good.headers.at("vary"), "Origin");
    }
    const RestAnswer preflight = client.Call(
        "OPTIONS /v2 HTTP/1.1\r\nHost: h\r\nOrigin: https://a.example\r\n"
        "Access-Control-Request-Method: POST\r\n\r\n");
    EXPECT_EQ(preflight.status, some ? 204 : 403);
    EXPECT_EQ(preflight.headers.contains("access-control-allow-methods"), some);
    const RestAnswer evil = client.Post("/v2/repository/models/layer_norm_1024/unload", "",
                                        "Origin: https://evil.example\r\n");
    EXPECT_EQ(evil.status, any ? 200 : 403);
    EXPECT_EQ(client.Get("/v2/models/layer_norm_1024/ready").status, any ? 400 : 200);
  }
}

TEST(RestServerTest, JudgesIdentitiesBeforeBodies) {
  constexpr char kPolicy[] = R"(
role { name: "user" infer: "layer_norm_*" }
role { name: "operator" admin: true }
identity { name: "u" role: "user" token: "u" }
identity { name: "a" role: "operator" token: "a" }
)";
  IdentityFolder folder;
  TestServerOptions options = WithRest();
  options.access = {folder.Write("policy", kPolicy),
                    folder.Write("tokens", testing::TokenLine("u", testing::TokenOf('u')) +
                                               testing::TokenLine("a", testing::TokenOf('a')))};
  TestServer server(options);
  RestClient client(server.http_port());
  const auto by = [](char letter) {
    return absl::StrCat("Authorization: ", BearerOf(letter), "\r\n");
  };
  // Not even malformed JSON is noticed.
  const RestAnswer nobody = client.Post(kInfer, "{");
  EXPECT_EQ(nobody.status, 401);
  EXPECT_EQ(nobody.headers.at("www-authenticate"), "Bearer");
  EXPECT_EQ(client.Post(kInfer, "{", by('x')).status, 401);
  EXPECT_EQ(client.Post(kInfer, "{", by('u') + by('u')).status, 401);
  EXPECT_EQ(client.Post(kInfer, "{", by('a')).status, 403);
  EXPECT_EQ(client.Post(kInfer, "{", by('u')).status, 400);
  EXPECT_EQ(client.Post("/v2/models/instance_norm_64/infer", "{", by('u')).status, 403);
  const RestBody good = ToBinary(ToInfer(MakeRequest("layer_norm_1024", {1, 1024})));
  EXPECT_EQ(client.Post(kInfer, good.body, good.headers + by('u')).status, 200);
  EXPECT_EQ(
      client.Post("/v2/models/instance_norm_64/infer", good.body, good.headers + by('u')).status,
      403);
  EXPECT_EQ(client.Get("/v2/models/instance_norm_64", by('u')).status, 403);
  EXPECT_EQ(client.Get("/v2/models/layer_norm_1024", by('u')).status, 200);
  EXPECT_EQ(client.Post("/v2/repository/models/layer_norm_1024/load", "", by('u')).status, 403);
  EXPECT_EQ(client.Post("/v2/repository/models/layer_norm_1024/load", "", by('a')).status, 200);
}

TEST(RestServerTest, WhatNeverFitsAnIdentitysLimitIsNotToBeTriedAgain) {
  IdentityFolder folder;
  TestServerOptions options = WithRest();
  // The tensors alone would fit.
  options.access = {folder.Write("policy", R"(
role { name: "user" infer: "layer_norm_*" }
identity { name: "u" role: "user" token: "u" limits { bytes_in_flight: 8192 } }
)"),
                    folder.Write("tokens", testing::TokenLine("u", testing::TokenOf('u')))};
  TestServer server(options);
  RestClient client(server.http_port());
  const RestBody body = ToBinary(ToInfer(MakeRequest("layer_norm_1024", {1, 1024})));
  const RestAnswer answer = client.Post(
      kInfer, body.body, absl::StrCat(body.headers, "Authorization: ", BearerOf('u'), "\r\n"));
  EXPECT_EQ(answer.status, 400);
  EXPECT_FALSE(answer.headers.contains("retry-after"));
  EXPECT_THAT(ErrorOf(answer), HasSubstr("this identity has 8192 and may have 8192 (JSON and "
                                         "inflated bytes count beside tensors)"));
}

TEST(RestServerTest, AmbiguousRequestsEndTheirConnection) {
  TestServer server(WithRest());
  for (const char* lines :
       {"Content-Length: 5\r\nContent-Length: 6\r\n",
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked, gzip\r\n", "X: a\r\n b\r\n", "Content-Length: five\r\n"}) {
    RestClient client(server.http_port());
    const RestAnswer answer =
        client.Call(absl::StrCat("POST ", kInfer, " HTTP/1.1\r\nHost: h\r\n", lines,
                                 "\r\n0\r\n\r\nGET /v2 HTTP/1.1\r\nHost: h\r\n\r\n"));
    EXPECT_EQ(answer.status, 400) << lines;
    EXPECT_EQ(answer.headers.at("connection"), "close");
    EXPECT_EQ(client.Read().status, 0) << "what follows is no request";
  }
  RestClient chunks(server.http_port());
  const RestAnswer answer = chunks.Call(absl::StrCat(
      "POST ", kInfer, " HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n"));
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(chunks.Read().status, 0);
  RestClient large(server.http_port());
  EXPECT_EQ(large.Get("/v2", "X: " + std::string(20000, 'x') + "\r\n").status, 431);
}

TEST(RestServerTest, CountsEachRefusalOnce) {
  TestServer server(WithRest());
  const auto to = [](const std::string& path, const std::string& lines) {
    return absl::StrCat("POST ", path, " HTTP/1.1\r\nHost: h\r\n", lines, "\r\n");
  };
  const std::string long_body = "Content-Length: 999999999999\r\n";
  const std::string chunked = "Transfer-Encoding: chunked\r\n";
  const struct {
    std::string request;
    int status;
  } cases[] = {{"nonsense\r\n\r\n", 400},
               {"GET /v2 HTTP/1.1\r\n\r\n", 400},
               {to(kInfer, "X: a\r\n b\r\n"), 400},
               {to(kInfer, "Content-Length: 5\r\nContent-Length: 6\r\n"), 400},
               {to(kInfer, "Content-Length: 5\r\n" + chunked), 400},
               {to(kInfer, "X: " + std::string(20000, 'x') + "\r\n"), 431},
               {to(kInfer, "Expect: more\r\n"), 417},
               {to(kInfer, "Origin: https://a.example\r\n"), 403},
               {to("/v2/%zz", ""), 400},
               {to("/v2/absent", ""), 404},
               {to("/v2/absent", long_body), 404},
               {to("/v2", ""), 405},
               {to(kInfer, ""), 400},
               {to(kInfer, long_body), 413},
               {to(kInfer, chunked) + "fffffffffff\r\n", 413},
               {to(kInfer, chunked) + "xyz\r\n", 400},
               {PostText(kInfer, "{"), 400},
               {PostText(kInfer, "{}", "Content-Encoding: br\r\n"), 501},
               {PostText(kInfer, "{}", "Inference-Header-Content-Length: 3\r\n"), 400},
               {PostText("/v2/models/absent/infer", "{\"inputs\":[]}"), 400},
               {to("/v2/repository/index", long_body), 413},
               {PostText("/v2/repository/index", "[]"), 400},
               {PostText("/v2/repository/models/absent/load", ""), 404},
               {PostText("/v2/trace/setting", "{\"trace_level\":[\"TIMESTAMPS\"]}"), 501}};
  const auto counted = [&server] {
    return server.MetricSum("normd_requests_total{") +
           server.MetricSum("normd_requests_refused_total{");
  };
  double wanted = 0;
  for (const auto& one : cases) {
    RestClient client(server.http_port());
    EXPECT_EQ(client.Call(one.request).status, one.status) << one.request;
    ++wanted;
    // A call is counted behind its response.
    for (int i = 0; i < 3000 && counted() < wanted; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_EQ(counted(), wanted) << one.request;
  }
  EXPECT_EQ(server.Metric("normd_requests_refused_total{status=\"405\"} "), 1);
  // A browser's question is answered without a call, and not refused.
  EXPECT_EQ(RestClient(server.http_port()).Call("OPTIONS /v2 HTTP/1.1\r\nHost: h\r\n\r\n").status,
            204);
  EXPECT_EQ(counted(), wanted);
}

TEST(RestServerTest, DropsWhoIsTooSlow) {
  RestOptions rest;
  rest.handshake_timeout = std::chrono::milliseconds(200);
  rest.message_timeout = std::chrono::milliseconds(200);
  rest.min_bytes_per_second = 1 << 20;
  rest.max_idle = std::chrono::milliseconds(200);
  TestServer server(WithRest(rest));
  for (const std::string& half :
       {std::string(), std::string("GET /v2 HT"), GoodRequest().substr(0, 2000),
        absl::StrCat("POST ", kInfer,
                     " HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab"),
        std::string("POST /v2/absent HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n1")}) {
    RestClient client(server.http_port());
    client.Send(half);
    EXPECT_EQ(client.Read().status, 0) << half.substr(0, 40);
  }
  RestClient idle(server.http_port());
  EXPECT_EQ(idle.Get("/v2").status, 200);
  EXPECT_EQ(idle.Read().status, 0);
  server.WaitIdle();
}

TEST(RestServerTest, DropsWhoDoesNotTakeTheResponse) {
  RestOptions rest;
  rest.response_timeout = std::chrono::milliseconds(200);
  TestServer server(WithRest(rest));
  RestClient client(server.http_port());
  // More than the kernel keeps for one who reads nothing.
  const std::string request = GoodRequest(1536);
  ASSERT_TRUE(client.Send(request));
  client.WaitClosed();
  server.WaitIdle();
  EXPECT_EQ(server.Metric("normd_requests_total{model=\"layer_norm_1024\",version=\"1\","
                          "method=\"Infer\",code=\"DEADLINE_EXCEEDED\"}"),
            1);
  EXPECT_EQ(server.Metric("normd_inflight_bytes"), 0);
}

// A client that sends a request and ends its side. The response is 1 MiB: the kernel takes it
// whole, and delivers part of it before anybody reads.
class LastResponseTest : public ::testing::TestWithParam<const char*> {
 protected:
  void Begin(RestOptions rest) {
    rest.max_connections = 1;
    rest.threads = 1;
    server_.emplace(WithRest(rest));
    client_.emplace(server_->http_port());
    ASSERT_TRUE(client_->Send(GoodRequest(256, GetParam())));
    WaitForOneInfer(*server_);
    client_->EndSending();
  }
  // Whether there is room for another.
  bool HasEnded() const { return RestClient(server_->http_port()).Get("/v2").status == 200; }

  std::optional<TestServer> server_;
  std::optional<RestClient> client_;
};

INSTANTIATE_TEST_SUITE_P(, LastResponseTest, ::testing::Values("", "Connection: close\r\n"));

TEST_P(LastResponseTest, IsDeliveredToWhoEndsItsSideAndWaits) {
  Begin({});
  // The server's thread has seen the client's end before it sees these.
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(HasEnded()) << "a connection counts until it has ended";
  const RestAnswer answer = client_->Read();
  EXPECT_EQ(answer.status, 200);
  EXPECT_GT(answer.body.size(), 256 * 4096U);
  while (!HasEnded()) std::this_thread::yield();
}

TEST_P(LastResponseTest, IsGivenUpWhenItsTimeIsOver) {
  RestOptions rest;
  rest.response_timeout = std::chrono::milliseconds(100);
  Begin(rest);
  while (!HasEnded()) std::this_thread::yield();
  EXPECT_EQ(client_->Read().status, 0) << "the kernel keeps nothing for it";
}

// The same for a client that asks for no more and does not end its side either.
TEST(RestServerTest, EndsAnIdleConnectionWithAResponseThatIsNotTaken) {
  RestOptions rest;
  rest.response_timeout = std::chrono::milliseconds(100);
  TestServer server(WithRest(rest));
  RestClient client(server.http_port());
  ASSERT_TRUE(client.Send(GoodRequest(256)));
  client.WaitReset();
  EXPECT_EQ(client.Read().status, 0);
}

// The connection's own idle time does not shorten the response's.
TEST(RestServerTest, AnIdleConnectionIsGivenItsResponseFirst) {
  RestOptions rest;
  rest.max_idle = std::chrono::milliseconds(100);
  rest.response_timeout = std::chrono::seconds(100);
  TestServer server(WithRest(rest));
  RestClient client(server.http_port());
  ASSERT_TRUE(client.Send(GoodRequest(256)));
  WaitForOneInfer(server);
  std::this_thread::sleep_for(kLinger + std::chrono::milliseconds(500));
  EXPECT_EQ(client.Read().status, 200);
}

TEST(RestServerTest, SmallRequestsDoNotPutOffAResponseThatIsNotTaken) {
  RestOptions rest;
  rest.response_timeout = std::chrono::milliseconds(100);
  TestServer server(WithRest(rest));
  RestClient client(server.http_port());
  ASSERT_TRUE(client.Send(GoodRequest(256)));
  int requests = 0;
  while (requests < 3000 && client.Send("GET /v2/health/live HTTP/1.1\r\nHost: h\r\n\r\n")) {
    ++requests;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_LT(requests, 3000);
}

TEST(RestServerTest, AStopLeavesALastResponseToTheKernel) {
  std::optional<RestClient> client;
  {
    TestServer server(WithRest());
    client.emplace(server.http_port());
    ASSERT_TRUE(client->Send(GoodRequest(256, "Connection: close\r\n")));
    WaitForOneInfer(server);
    GracefulStop stop({}, server.stop_parts());
    stop.Signal();
    EXPECT_EQ(stop.Run(), GracefulStop::Outcome::kClean);
  }
  const RestAnswer answer = client->Read();
  EXPECT_EQ(answer.status, 200);
  EXPECT_GT(answer.body.size(), 256 * 4096U);
}

TEST(RestServerTest, BoundsConnections) {
  RestOptions rest;
  rest.max_connections = 4;
  rest.max_peer_connections = 2;
  TestServer server(WithRest(rest));
  RestClient first(server.http_port());
  RestClient second(server.http_port());
  EXPECT_EQ(first.Get("/v2").status, 200);
  EXPECT_EQ(second.Get("/v2").status, 200);
  EXPECT_EQ(RestClient(server.http_port()).Get("/v2").status, 0);
  RestClient other(server.http_port(), "127.0.0.2");
  EXPECT_EQ(other.Get("/v2").status, 200);
  EXPECT_EQ(server.Metric("normd_connections{port=\"http\"}"), 3);
  EXPECT_EQ(server.Metric("normd_connections_limit{port=\"http\"}"), 4);
  EXPECT_EQ(server.Metric("normd_connections_accepted_total{port=\"http\"}"), 3);
  const std::string refused = "normd_connections_refused_total{port=\"http\",reason=";
  EXPECT_EQ(server.Metric(refused + "\"peer_connections\"}"), 1);
  const RestClient fourth(server.http_port(), "127.0.0.2");
  EXPECT_EQ(RestClient(server.http_port(), "127.0.0.3").Get("/v2").status, 0);
  EXPECT_EQ(server.Metric(refused + "\"connections\"}"), 1);
  EXPECT_EQ(server.MetricSum("normd_connections_refused_total{port=\"grpc\""), 0);
}

TEST(RestServerTest, AStopFinishesWhatItHasAndRefusesTheRest) {
  TestServer server(WithRest());
  server.gate().Close();
  RestClient inside(server.http_port());
  ASSERT_TRUE(inside.Send(GoodRequest(64)));
  server.gate().WaitForStalled(1);
  RestClient half(server.http_port());
  ASSERT_TRUE(half.Send("POST /v2"));
  RestClient idle(server.http_port());
  EXPECT_EQ(idle.Get("/v2/health/ready").status, 200);
  RestClient slow(server.http_port());
  EXPECT_EQ(slow.Get("/v2/health/ready").status, 200);
  GracefulStop stop({}, server.stop_parts());
  GracefulStop::Outcome outcome = GracefulStop::Outcome::kAborted;
  std::thread thread([&] { outcome = stop.Run(); });
  stop.Signal();
  const auto get = [&](const char* path) { return RestClient(server.http_port()).Get(path); };
  while (get("/v2").status != 503) std::this_thread::yield();
  EXPECT_EQ(get("/v2/health/live").status, 200);
  for (const char* path : {"/v2/health/ready", "/v2/models/layer_norm_1024/ready"}) {
    const RestAnswer not_ready = get(path);
    EXPECT_EQ(not_ready.status, 400) << path;
    EXPECT_THAT(not_ready.body, HasSubstr("\"ready\":false"));
  }
  // Its body never comes.
  const RestAnswer unread = slow.Call(
      "POST /v2/models/layer_norm_1024/infer HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\n");
  const RestAnswer begun = half.Call(GoodRequest().substr(std::strlen("POST /v2")));
  RestAnswer late = idle.Call(GoodRequest());
  for (const RestAnswer& refused : {unread, begun, late}) {
    EXPECT_EQ(refused.status, 503);
    EXPECT_EQ(ErrorOf(refused), "the server is shutting down");
  }
  EXPECT_EQ(server.MetricSum("normd_rejected_total{model=\"\",reason=\"draining\"}"), 4);
  EXPECT_EQ(late.headers.at("retry-after"), "1");
  EXPECT_EQ(late.headers.at("connection"), "close");
  server.gate().Open();
  const RestAnswer answer = inside.Read();
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.headers.at("connection"), "close");
  thread.join();
  EXPECT_EQ(outcome, GracefulStop::Outcome::kClean);
  EXPECT_EQ(RestClient(server.http_port()).Get("/v2").status, 0);
}

TEST(RestServerTest, AStopDoesNotWaitForTheBodyOfALoad) {
  RestOptions rest;
  rest.threads = 1;
  TestServer server(WithRest(rest));
  RestClient client(server.http_port());
  ASSERT_TRUE(
      client.Send("POST /v2/repository/models/layer_norm_1024/load HTTP/1.1\r\nHost: h\r\n"
                  "Content-Length: 1000\r\n\r\n{"));
  while (server.stop_parts().active.count() == 0) std::this_thread::yield();
  // The connections' one thread is past the head of the load.
  ASSERT_EQ(RestClient(server.http_port()).Get("/v2/health/ready").status, 200);
  GracefulStop stop(
      {.drain_timeout = std::chrono::seconds(20), .stream_quiet = std::chrono::hours(1)},
      server.stop_parts());
  GracefulStop::Outcome outcome = GracefulStop::Outcome::kAborted;
  std::thread thread([&] { outcome = stop.Run(); });
  stop.Signal();
  const RestAnswer answer = client.Read();
  thread.join();
  EXPECT_EQ(answer.status, 503);
  EXPECT_EQ(ErrorOf(answer), "the server is stopping");
  EXPECT_EQ(outcome, GracefulStop::Outcome::kClean);
}

enum class Framing { kLength, kChunks };

// A stop that begins when part of a request's body has come.
class StopInBodyTest : public ::testing::TestWithParam<Framing> {
 protected:
  StopInBodyTest() {
    const RestBody body = ToBinary(ToInfer(MakeRequest("layer_norm_1024", {64, 1024})));
    request_ = GetParam() == Framing::kLength
                   ? PostText(kInfer, body.body, body.headers)
                   : testing::ChunkedText(kInfer, body.body, 1000, body.headers);
  }
  ~StopInBodyTest() override {
    if (thread_.joinable()) thread_.join();
  }
  // Returns when the server refuses new requests.
  void Begin(GracefulStopOptions options) {
    ASSERT_TRUE(client_.Send(request_.substr(0, kPart)));
    while (server_.Metric("normd_inflight_bytes") == 0) std::this_thread::yield();
    stop_.emplace(options, server_.stop_parts());
    thread_ = std::thread([this] { outcome_ = stop_->Run(); });
    stop_->Signal();
    while (RestClient(server_.http_port()).Get("/v2").status != 503) std::this_thread::yield();
  }
  void ExpectEnd(GracefulStop::Outcome outcome) {
    thread_.join();
    EXPECT_EQ(outcome_, outcome);
    EXPECT_EQ(client_.Read().status, 0);
  }

  static constexpr std::size_t kPart = 100'000;
  std::string request_;
  TestServer server_{WithRest()};
  RestClient client_{server_.http_port()};
  std::optional<GracefulStop> stop_;
  std::optional<GracefulStop::Outcome> outcome_;
  std::thread thread_;
};

INSTANTIATE_TEST_SUITE_P(, StopInBodyTest, ::testing::Values(Framing::kLength, Framing::kChunks));

TEST_P(StopInBodyTest, ServesItWhenItIsWhole) {
  Begin({.drain_timeout = std::chrono::hours(1), .stream_quiet = std::chrono::hours(1)});
  const RestAnswer answer = client_.Call(request_.substr(kPart));
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(answer.headers.at("connection"), "close");
  ExpectEnd(GracefulStop::Outcome::kClean);
}

TEST_P(StopInBodyTest, RefusesItWhenNothingMoreComes) {
  Begin({.drain_timeout = std::chrono::hours(1), .stream_quiet = std::chrono::milliseconds(1)});
  const RestAnswer answer = client_.Read();
  EXPECT_EQ(answer.status, 503);
  EXPECT_EQ(ErrorOf(answer), "the server is stopping");
  ExpectEnd(GracefulStop::Outcome::kClean);
}

TEST_P(StopInBodyTest, RefusesItWhenTheTimeIsOver) {
  Begin({.drain_timeout = std::chrono::hours(1), .stream_quiet = std::chrono::hours(1)});
  stop_->Signal();
  const RestAnswer answer = client_.Read();
  EXPECT_EQ(answer.status, 503);
  EXPECT_EQ(ErrorOf(answer), "the server is stopping");
  thread_.join();
  EXPECT_EQ(outcome_, GracefulStop::Outcome::kAborted);
}

}  // namespace
}  // namespace normd
