#include "server/http/http_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <deque>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/descriptor.h"
#include "base/mutex.h"
#include "tests/server/http/http_peer.h"

namespace normd::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr std::size_t kBigBytes = std::size_t{8} << 20;  // More than the kernel takes.
// More than a client's window and less than the kernel takes.
constexpr std::size_t kLargeBytes = std::size_t{512} << 10;
constexpr char kOther[] = "127.0.0.2";
constexpr char kAsk[] = "GET /now HTTP/1.1\r\n\r\n";

// Answers /now and /large at once, /big with a body of its own, and /later when the test says so.
class HttpServerTest : public ::testing::Test {
 protected:
  void Start(HttpServerOptions options = {}) {
    auto server = HttpServer::Start(
        "127.0.0.1:0", options, [this](const HttpRequest& request, HttpServer::Respond respond) {
          if (request.path == "/now") return respond({200, "text/plain", false, now_});
          if (request.path == "/large") return respond({200, "text/plain", false, large_});
          if (request.path == "/later") {
            MutexLock lock(mutex_);
            later_.push_back(std::move(respond));
            return changed_.SignalAll();
          }
          if (request.path != "/big") return respond({404, "text/plain", false, nullptr});
          auto body = std::make_shared<const std::string>(std::string(kBigBytes, 'x'));
          MutexLock lock(mutex_);
          bodies_.push_back(body);
          respond({200, "text/plain", false, std::move(body)});
        });
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  int port() const { return server_->port(); }
  HttpServer::Respond TakeLater() {
    MutexLock lock(mutex_);
    while (later_.empty()) changed_.Wait(mutex_);
    HttpServer::Respond respond = std::move(later_.front());
    later_.pop_front();
    return respond;
  }
  // Responses of /big that the server still holds.
  std::size_t BodiesHeld() {
    MutexLock lock(mutex_);
    std::erase_if(bodies_, [](const auto& body) { return body.expired(); });
    return bodies_.size();
  }
  // A connection ends on the server's thread, a moment after the client's.
  void WaitForConnections(std::int64_t wanted) const {
    while (server_->stats().connections > wanted) std::this_thread::yield();
  }

  const std::shared_ptr<const std::string> now_ = std::make_shared<const std::string>("here");
  const std::shared_ptr<const std::string> large_ =
      std::make_shared<const std::string>(std::string(kLargeBytes, 'x'));
  Mutex mutex_;
  CondVar changed_;
  std::deque<HttpServer::Respond> later_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::weak_ptr<const std::string>> bodies_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<HttpServer> server_;
};

HttpServerOptions Quick(Duration timeout) {
  HttpServerOptions options;
  options.timeout = timeout;
  return options;
}

TEST_F(HttpServerTest, AnswersAndCloses) {
  Start();
  const std::string answer = HttpGet(port(), "/now?a=b");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("Content-Length: 4\r\n"));
  EXPECT_THAT(answer, HasSubstr("Connection: close\r\n"));
  EXPECT_EQ(HttpBody(answer), "here");
  EXPECT_THAT(HttpGet(port(), "/nothing"), StartsWith("HTTP/1.1 404 Not Found\r\n"));
  EXPECT_EQ(HttpBody(HttpGet(port(), "/big")).size(), kBigBytes);
  WaitForConnections(0);
}

TEST_F(HttpServerTest, AnswersHeadWithoutABody) {
  Start();
  HttpPeer peer(port());
  ASSERT_TRUE(peer.Send("HEAD /now HTTP/1.1\r\n\r\n"));
  const std::string answer = peer.ReadAll();
  EXPECT_THAT(answer, HasSubstr("Content-Length: 4\r\n"));
  EXPECT_EQ(HttpBody(answer), "");
}

TEST_F(HttpServerTest, RefusesWhatItDoesNotServe) {
  Start();
  const std::vector<std::pair<std::string, const char*>> cases = {
      {"POST /now HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", "HTTP/1.1 405"},
      {"BREW /now HTTP/1.1\r\n\r\n", "HTTP/1.1 405"},
      {"nonsense\r\n\r\n", "HTTP/1.1 400"},
      {"GET /now HTTP/9.9\r\n\r\n", "HTTP/1.1 400"},
      {std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11), "HTTP/1.1 400"},  // TLS
      {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP/1.1 400"},
      {"GET /now HTTP/1.1\r\nA: b\r\n c: d\r\n\r\n", "HTTP/1.1 "},
      {"GET /now HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", "HTTP/1.1 400"}};
  for (const auto& [request, wanted] : cases) {
    HttpPeer peer(port());
    ASSERT_TRUE(peer.Send(request));
    EXPECT_THAT(peer.ReadAll(), StartsWith(wanted)) << request;
  }
}

TEST_F(HttpServerTest, RefusesAHeadThatIsTooLongWhileItComes) {
  Start();
  HttpPeer peer(port());
  const std::string megabyte(std::size_t{1} << 20, 'a');
  peer.Send("GET /now HTTP/1.1\r\nX: ");
  for (int i = 0; i < 10 && peer.Send(megabyte); ++i) {
  }
  EXPECT_EQ(HttpBody(HttpGet(port(), "/now")), "here");
  HttpPeer polite(port());
  ASSERT_TRUE(polite.Send(absl::StrCat("GET /now HTTP/1.1\r\nX: ", std::string(9000, 'a'))));
  EXPECT_THAT(polite.ReadAll(), StartsWith("HTTP/1.1 431 "));
}

TEST_F(HttpServerTest, AnswersTheFirstOfPipelinedRequests) {
  Start();
  std::string requests;
  for (int i = 0; i < 1000; ++i) requests += kAsk;
  HttpPeer peer(port());
  peer.Send(requests);
  EXPECT_EQ(HttpBody(peer.ReadAll()), "here");
  EXPECT_EQ(server_->stats().responses[0], 1);
}

TEST_F(HttpServerTest, SurvivesAnyBytes) {
  Start();
  std::mt19937 random(20261122);
  const std::string valid = "GET /now HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n";
  for (int round = 0; round < 300; ++round) {
    std::string bytes = valid;
    for (int i = 0; i < 1 + round % 8; ++i) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    HttpPeer peer(port());
    peer.Send(bytes.substr(0, random() % (bytes.size() + 1)));
  }
  EXPECT_EQ(HttpBody(HttpGet(port(), "/now")), "here");
}

// Each way of holding a connection, from another address and from the scraper's own.
TEST_F(HttpServerTest, AnswersWhileOthersHoldTwoHundredConnections) {
  Start(Quick(std::chrono::minutes(10)));
  for (const char* source : {kOther, "127.0.0.1"}) {
    for (const char* sent : {"", "GET /now HTT", "GET /now HTTP/1.1\r\nA: ",
                             "GET /big HTTP/1.1\r\n\r\n", "GET /later HTTP/1.1\r\n\r\n"}) {
      std::vector<HttpPeer> peers;
      for (int i = 0; i < 200; ++i) {
        peers.emplace_back(port(), source);
        peers.back().Send(sent);
        if (i % 50 != 0) continue;
        EXPECT_EQ(HttpBody(HttpGet(port(), "/now")), "here") << source << " " << sent;
      }
      EXPECT_EQ(HttpBody(HttpGet(port(), "/now")), "here") << source << " " << sent;
      EXPECT_LE(server_->stats().connections, 64);
    }
  }
  EXPECT_GT(server_->stats().evictions, 0);
  EXPECT_EQ(server_->stats().timeouts, 0);
}

TEST_F(HttpServerTest, AFloodFromOneAddressDropsNoConnectionOfAnother) {
  Start(Quick(std::chrono::minutes(10)));
  HttpPeer slow(port());
  ASSERT_TRUE(slow.Send("GET /n"));
  while (server_->stats().connections < 1) std::this_thread::yield();
  std::vector<HttpPeer> flood;
  for (int i = 0; i < 500; ++i) flood.emplace_back(port(), kOther);
  ASSERT_TRUE(slow.Send("ow HTTP/1.1\r\n\r\n"));
  EXPECT_EQ(HttpBody(slow.ReadAll()), "here");
}

TEST_F(HttpServerTest, DropsARequestThatTricklesInAfterItsTimeAsAWhole) {
  Start(Quick(milliseconds(300)));
  HttpPeer peer(port());
  peer.Send("GET /now HTTP/1.1\r\nX: ");
  while (peer.Send("a")) std::this_thread::sleep_for(milliseconds(5));
  WaitForConnections(0);
  EXPECT_EQ(server_->stats().timeouts, 1);
}

TEST_F(HttpServerTest, DropsWhoSaysNothing) {
  Start(Quick(milliseconds(20)));
  HttpPeer peer(port());
  EXPECT_EQ(peer.ReadAll(), "");
  WaitForConnections(0);
  EXPECT_EQ(server_->stats().timeouts, 1);
}

TEST_F(HttpServerTest, GivesUpAResponseThatNobodyTakesAndFreesIt) {
  Start(Quick(milliseconds(200)));
  HttpPeer peer(port());
  ASSERT_TRUE(peer.Send("GET /big HTTP/1.1\r\n\r\n"));
  while (server_->stats().timeouts == 0) std::this_thread::yield();
  // The connection is no longer counted a moment before its body is freed.
  while (BodiesHeld() > 0) std::this_thread::yield();
}

TEST_F(HttpServerTest, SlowReadersHoldABoundedNumberOfBodies) {
  Start(Quick(std::chrono::minutes(10)));
  std::vector<HttpPeer> peers;
  for (int i = 0; i < 60; ++i) {
    // From many addresses, so that no peer's share bounds them.
    peers.emplace_back(port(), absl::StrCat("127.0.1.", 1 + i % 20).c_str());
    ASSERT_TRUE(peers.back().Send("GET /big HTTP/1.1\r\n\r\n"));
  }
  // Each request has made its body by then, and a body beyond the fourth is gone in a moment.
  while (server_->stats().responses[0] < 60) std::this_thread::yield();
  while (BodiesHeld() > 4) std::this_thread::yield();
  EXPECT_EQ(server_->stats().evictions, 56);
  EXPECT_EQ(HttpBody(HttpGet(port(), "/big")).size(), kBigBytes);
}

TEST_F(HttpServerTest, KeepsAConnectionWhoseClientEndsItsSide) {
  Start();
  HttpPeer peer(port());
  ASSERT_TRUE(peer.Send("GET /later HTTP/1.1\r\n\r\n"));
  const HttpServer::Respond respond = TakeLater();
  respond({200, "text/plain", false, now_});
  EXPECT_EQ(HttpBody(peer.ReadAll()), "here");
}

TEST_F(HttpServerTest, AClientThatEndsItsSideFirstGetsAWholeResponse) {
  Start();
  HttpPeer peer(port());
  ASSERT_TRUE(peer.Send("GET /large HTTP/1.1\r\n\r\n"));
  peer.EndSending();
  // By then the server has written it all, and seen the end of the client's side.
  for (int i = 0; i < 20; ++i) EXPECT_EQ(HttpBody(HttpGet(port(), "/now", kOther)), "here");
  EXPECT_EQ(HttpBody(peer.ReadAll()).size(), kLargeBytes);
  WaitForConnections(0);
}

TEST_F(HttpServerTest, ARespondForAConnectionThatIsGoneIsIgnored) {
  Start();
  HttpServer::Respond respond;
  {
    HttpPeer peer(port());
    ASSERT_TRUE(peer.Send("GET /later HTTP/1.1\r\n\r\n"));
    respond = TakeLater();
  }
  respond({200, "text/plain", false, now_});
  EXPECT_EQ(HttpBody(HttpGet(port(), "/now")), "here");
}

TEST_F(HttpServerTest, ListensAgainAfterDescriptorsRanOutAndDoesNotSpin) {
  Start();
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  std::vector<HttpPeer> peers;
  std::vector<int> taken;
  for (int fd; (fd = dup(STDERR_FILENO)) >= 0 && taken.size() < 50;) taken.push_back(fd);
  const rlimit tight = {static_cast<rlim_t>(taken.back() + 1), before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &tight), 0);
  // One for the client; the server finds none.
  close(taken.back());
  taken.pop_back();
  peers.emplace_back(port());
  ASSERT_TRUE(peers.back().Send(kAsk));
  while (server_->stats().exhausted == 0) std::this_thread::yield();
  const auto begin = std::chrono::steady_clock::now();
  while (server_->stats().exhausted < 4) std::this_thread::yield();
  // A pause between two attempts: it takes no processor time.
  EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(200));
  for (const int fd : taken) close(fd);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(HttpBody(peers.back().ReadAll()), "here");
  EXPECT_EQ(HttpBody(HttpGet(port(), "/now")), "here");
}

TEST_F(HttpServerTest, EndsAtOnceWithConnectionsInEveryState) {
  Start(Quick(std::chrono::minutes(10)));
  std::vector<HttpPeer> peers;
  for (const char* sent : {"", "GET /now HTT", "GET /big HTTP/1.1\r\n\r\n",
                           "GET /later HTTP/1.1\r\n\r\n", "GET /now HTTP/1.1\r\n\r\n"}) {
    peers.emplace_back(port());
    peers.back().Send(sent);
  }
  const HttpServer::Respond respond = TakeLater();
  server_.reset();
  for (const HttpPeer& peer : peers) peer.WaitClosed();
}

bool Connects(const char* address, int port) {
  const Descriptor client(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in6 to = {};
  to.sin6_family = AF_INET6;
  to.sin6_port = htons(static_cast<in_port_t>(port));
  inet_pton(AF_INET6, address, &to.sin6_addr);
  return connect(client.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0;
}

TEST_F(HttpServerTest, ListensAtBothFamiliesForEitherWildcard) {
  if (!HttpServer::Start("[::1]:0", {}, [](const HttpRequest&, const HttpServer::Respond&) {
       }).ok()) {
    GTEST_SKIP() << "this machine has no IPv6";
  }
  for (const char* wildcard : {"0.0.0.0:0", "[::]:0"}) {
    const auto server =
        HttpServer::Start(wildcard, {}, [](const HttpRequest&, const HttpServer::Respond&) {});
    ASSERT_TRUE(server.ok()) << server.status();
    EXPECT_TRUE(Connects("::1", (*server)->port())) << wildcard;
    EXPECT_TRUE(Connects("::ffff:127.0.0.1", (*server)->port())) << wildcard;
  }
}

TEST_F(HttpServerTest, TakesNamesAndIpv6) {
  const auto handler = [](const HttpRequest&, const HttpServer::Respond&) {};
  EXPECT_TRUE(HttpServer::Start("localhost:0", {}, handler).ok());
  for (const char* bad :
       {"", "8002", ":8002", "127.0.0.1", "127.0.0.1:", "127.0.0.1:80x", "127.0.0.1:443s",
        "127.0.0.1:70000", "127.0.0.1:0,127.0.0.1:0", "::1:8002"}) {
    EXPECT_EQ(HttpServer::Start(bad, {}, handler).status().code(),
              absl::StatusCode::kInvalidArgument)
        << bad;
  }
  EXPECT_EQ(HttpServer::Start("no.such.host.invalid:0", {}, handler).status().code(),
            absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace normd::testing
