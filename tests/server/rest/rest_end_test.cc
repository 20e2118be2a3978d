// The front end's port: how requests, connections, and the server itself come to their end.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <optional>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "server/http/connection_end.h"
#include "tests/server/rest/rest_client.h"
#include "tests/server/rest/rest_requests.h"
#include "tests/server/rpc/test_server.h"

namespace normd::testing {
namespace {

using ::testing::HasSubstr;

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

TEST(RestEndTest, DropsWhoIsTooSlow) {
  TestServer server(WithRest({.handshake_timeout = std::chrono::milliseconds(200),
                              .message_timeout = std::chrono::milliseconds(200),
                              .min_bytes_per_second = 1 << 20,
                              .max_idle = std::chrono::milliseconds(200)}));
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

TEST(RestEndTest, DropsWhoDoesNotTakeTheResponse) {
  TestServer server(WithRest({.response_timeout = std::chrono::milliseconds(200)}));
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
  Begin({.response_timeout = std::chrono::milliseconds(100)});
  while (!HasEnded()) std::this_thread::yield();
  EXPECT_EQ(client_->Read().status, 0) << "the kernel keeps nothing for it";
}

// The same for a client that asks for no more and does not end its side either.
TEST(RestEndTest, EndsAnIdleConnectionWithAResponseThatIsNotTaken) {
  TestServer server(WithRest({.response_timeout = std::chrono::milliseconds(100)}));
  RestClient client(server.http_port());
  ASSERT_TRUE(client.Send(GoodRequest(256)));
  client.WaitReset();
  EXPECT_EQ(client.Read().status, 0);
}

// The connection's own idle time does not shorten the response's.
TEST(RestEndTest, AnIdleConnectionIsGivenItsResponseFirst) {
  TestServer server(WithRest(
      {.response_timeout = std::chrono::seconds(100), .max_idle = std::chrono::milliseconds(100)}));
  RestClient client(server.http_port());
  ASSERT_TRUE(client.Send(GoodRequest(256)));
  WaitForOneInfer(server);
  std::this_thread::sleep_for(kLinger + std::chrono::milliseconds(500));
  EXPECT_EQ(client.Read().status, 200);
}

TEST(RestEndTest, SmallRequestsDoNotPutOffAResponseThatIsNotTaken) {
  TestServer server(WithRest({.response_timeout = std::chrono::milliseconds(100)}));
  RestClient client(server.http_port());
  ASSERT_TRUE(client.Send(GoodRequest(256)));
  int requests = 0;
  while (requests < 3000 && client.Send("GET /v2/health/live HTTP/1.1\r\nHost: h\r\n\r\n")) {
    ++requests;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_LT(requests, 3000);
}

TEST(RestEndTest, AStopLeavesALastResponseToTheKernel) {
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

TEST(RestEndTest, AStopFinishesWhatItHasAndRefusesTheRest) {
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

TEST(RestEndTest, AStopDoesNotWaitForTheBodyOfALoad) {
  TestServer server(WithRest({.threads = 1}));
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
    const RestBody body = GoodBody(64);
    request_ = GetParam() == Framing::kLength ? GoodRequest(64)
                                              : ChunkedText(kInfer, body.body, 1000, body.headers);
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
}  // namespace normd::testing
