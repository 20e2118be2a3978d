// The front end's port: methods beside inference, rights, and limits.

#include "server/rest/rest_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/server/identity/identity_files.h"
#include "tests/server/rest/rest_client.h"
#include "tests/server/rest/rest_requests.h"
#include "tests/server/rpc/test_server.h"

namespace normd::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

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
  const RestBody body = GoodBody();
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
    TestServer server(WithRest({.allow_origin = allowed}));
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
  SecretFolder folder;
  TestServerOptions options = WithRest();
  options.access = {folder.Write("policy", kPolicy), WriteTokens(folder, "ua")};
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
  EXPECT_EQ(RestClient(server.http_port())
                .Call("POST /v2/models/instance_norm_64/infer HTTP/1.1\r\nHost: h\r\n"
                      "Content-Length: 999999999999\r\n" +
                      by('u') + "\r\n")
                .status,
            403);
  const RestBody good = GoodBody();
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
  SecretFolder folder;
  TestServerOptions options = WithRest();
  // The tensors alone would fit.
  options.access = {folder.Write("policy", R"(
role { name: "user" infer: "layer_norm_*" }
identity { name: "u" role: "user" token: "u" limits { bytes_in_flight: 8192 } }
)"),
                    WriteTokens(folder, "u")};
  TestServer server(options);
  RestClient client(server.http_port());
  const RestBody body = GoodBody();
  const RestAnswer answer = client.Post(
      kInfer, body.body, absl::StrCat(body.headers, "Authorization: ", BearerOf('u'), "\r\n"));
  EXPECT_EQ(answer.status, 400);
  EXPECT_FALSE(answer.headers.contains("retry-after"));
  EXPECT_THAT(ErrorOf(answer), HasSubstr("this identity has 8192 and may have 8192 (JSON and "
                                         "inflated bytes count beside tensors)"));
}

// Where a request ends is unclear after a refusal, so what follows is not taken for another one.
TEST(RestServerTest, CountsEachRefusalOnceAndNothingBehindOne) {
  TestServer server(WithRest());
  const auto to = [](const std::string& path, const std::string& lines) {
    return absl::StrCat("POST ", path, " HTTP/1.1\r\nHost: h\r\n", lines, "\r\n");
  };
  const std::string next = "0\r\n\r\nGET /v2 HTTP/1.1\r\nHost: h\r\n\r\n";
  const std::string long_body = "Content-Length: 999999999999\r\n";
  const std::string chunked = "Transfer-Encoding: chunked\r\n";
  const struct {
    std::string request;
    int status;
  } cases[] = {{"nonsense\r\n\r\n", 400},
               {"GET /v2 HTTP/1.1\r\n\r\n", 400},
               {to(kInfer, "X: a\r\n b\r\n") + next, 400},
               {to(kInfer, "Content-Length: 5\r\nContent-Length: 6\r\n") + next, 400},
               {to(kInfer, "Content-Length: 5\r\n" + chunked) + next, 400},
               {to(kInfer, "Content-Length: five\r\n") + next, 400},
               {to(kInfer, "Transfer-Encoding: chunked, gzip\r\n") + next, 400},
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
               {to(kInfer, chunked) + "xyz\r\n" + next, 400},
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
    const RestAnswer answer = client.Call(one.request);
    EXPECT_EQ(answer.status, one.status) << one.request;
    ++wanted;
    if (absl::StrContains(one.request, next)) {
      EXPECT_EQ(answer.headers.at("connection"), "close");
      EXPECT_EQ(client.Read().status, 0) << one.request;
    }
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

TEST(RestServerTest, BoundsConnections) {
  TestServer server(WithRest({.max_connections = 4, .max_peer_connections = 2}));
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

}  // namespace
}  // namespace normd::testing
