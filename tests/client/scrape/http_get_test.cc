#include "client/scrape/http_get.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <thread>

namespace normd::client {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// Listens on a free port of loopback.
HttpUrl ListenOn(int fd) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* any = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(::bind(fd, any, size), 0);
  EXPECT_EQ(::listen(fd, 1), 0);
  EXPECT_EQ(::getsockname(fd, any, &size), 0);
  return {"127.0.0.1", std::to_string(ntohs(address.sin_port)), "/metrics"};
}

// Answers one connection on loopback with fixed bytes, whatever it is asked, and closes it.
class OneResponse {
 public:
  explicit OneResponse(std::string answer)
      : fd_(::socket(AF_INET, SOCK_STREAM, 0)), url_(ListenOn(fd_)) {
    thread_ = std::thread([this, answer = std::move(answer)] {
      const int connection = ::accept(fd_, nullptr, nullptr);
      char request[1024];
      const ssize_t got = ::recv(connection, request, sizeof(request), 0);
      request_.assign(request, static_cast<std::size_t>(got > 0 ? got : 0));
      EXPECT_EQ(::send(connection, answer.data(), answer.size(), MSG_NOSIGNAL),
                static_cast<ssize_t>(answer.size()));
      ::close(connection);
    });
  }
  ~OneResponse() { Join(); }

  const HttpUrl& url() const { return url_; }
  // What was asked.
  const std::string& Join() {
    if (thread_.joinable()) {
      thread_.join();
      ::close(fd_);
    }
    return request_;
  }

 private:
  int fd_;
  HttpUrl url_;
  std::string request_;
  std::thread thread_;
};

absl::StatusOr<std::string> Get(const std::string& answer) {
  OneResponse server(answer);
  return HttpGet(server.url(), std::chrono::seconds(60));
}

TEST(HttpGetTest, ReturnsTheBody) {
  OneResponse server("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\na 1\r\n");
  const auto body = HttpGet(server.url(), std::chrono::seconds(60));
  ASSERT_TRUE(body.ok()) << body.status();
  EXPECT_EQ(*body, "a 1\r\n");
  EXPECT_THAT(server.Join(), StartsWith("GET /metrics HTTP/1.0\r\nHost: 127.0.0.1:"));
}

TEST(HttpGetTest, OtherResponsesAreErrors) {
  EXPECT_THAT(std::string(Get("HTTP/1.0 404 Not Found\r\n\r\nno").status().message()),
              HasSubstr("/metrics: the response is HTTP/1.0 404 Not Found"));
  EXPECT_THAT(std::string(Get("SSH-2.0\r\n\r\n").status().message()), HasSubstr("not HTTP"));
  EXPECT_THAT(std::string(Get("").status().message()), HasSubstr("not HTTP"));
  const auto broken = Get("HTTP/1.0 200 OK\r\ncontent-length: 9\r\n\r\nhalf");
  EXPECT_EQ(broken.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(
      std::string(
          Get("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n").status().message()),
      HasSubstr("chunks"));
}

TEST(HttpGetTest, AServerThatIsNotThereIsUnavailable) {
  HttpUrl url;
  {
    OneResponse gone("HTTP/1.0 200 OK\r\n\r\n");
    url = gone.url();
    EXPECT_TRUE(HttpGet(url, std::chrono::seconds(60)).ok());
  }
  const absl::Status status = HttpGet(url, std::chrono::seconds(60)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("cannot connect"));
}

TEST(HttpGetTest, ASilentServerEndsWithTheTime) {
  // Listens and never accepts: the kernel takes the connection.
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  const HttpUrl url = ListenOn(fd);
  EXPECT_EQ(HttpGet(url, std::chrono::milliseconds(20)).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  ::close(fd);
}

// Answers one connection with a byte now and then, for as long as it is listened to.
TEST(HttpGetTest, AServerThatDripsBytesEndsWithTheTimeInEveryPartOfItsResponse) {
  for (const std::string begin :
       {"", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n",
        "HTTP/1.1 200 OK\r\n\r\n"}) {
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    const HttpUrl url = ListenOn(fd);
    std::thread server([fd, &begin] {
      const int connection = ::accept(fd, nullptr, nullptr);
      ssize_t sent = ::send(connection, begin.data(), begin.size(), MSG_NOSIGNAL);
      const char* const drops = begin.empty() ? "HTTP/1.1 200 OK \r\nX: " : "x";
      for (std::size_t i = 0; sent >= 0; ++i) {
        const char drop = i < std::strlen(drops) ? drops[i] : 'x';
        sent = ::send(connection, &drop, 1, MSG_NOSIGNAL);
        pollfd hung_up = {connection, POLLRDHUP, 0};
        if (::poll(&hung_up, 1, /*timeout_ms=*/1) > 0) break;
      }
      ::close(connection);
    });
    EXPECT_EQ(HttpGet(url, std::chrono::milliseconds(100)).status().code(),
              absl::StatusCode::kDeadlineExceeded)
        << begin;
    server.join();
    ::close(fd);
  }
}

TEST(HttpGetTest, RefusesAResponseOfMoreThanItTakes) {
  const absl::Status status = Get("HTTP/1.1 200 OK\r\ncontent-length: 67108865\r\n\r\n").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("more than 67108864 bytes"));
}

TEST(HttpGetTest, ABodyWithoutALengthEndsWithTheConnection) {
  EXPECT_EQ(Get("HTTP/1.0 200 OK\r\n\r\nall of it").value(), "all of it");
}

TEST(ParseHttpUrlTest, ReadsItsParts) {
  const auto full = ParseHttpUrl("http://example.org:8002/metrics?x=1");
  ASSERT_TRUE(full.ok()) << full.status();
  EXPECT_EQ(full->host, "example.org");
  EXPECT_EQ(full->port, "8002");
  EXPECT_EQ(full->path, "/metrics?x=1");
  const auto short_one = ParseHttpUrl("localhost");
  ASSERT_TRUE(short_one.ok()) << short_one.status();
  EXPECT_EQ(short_one->port, "80");
  EXPECT_EQ(short_one->path, "/");
  const auto v6 = ParseHttpUrl("http://[::1]:9/");
  ASSERT_TRUE(v6.ok()) << v6.status();
  EXPECT_EQ(v6->host, "::1");
  const auto secure = ParseHttpUrl("https://example.org/metrics");
  ASSERT_TRUE(secure.ok()) << secure.status();
  EXPECT_TRUE(secure->tls);
  EXPECT_EQ(secure->port, "443");
  EXPECT_EQ(secure->host, "example.org");
  EXPECT_FALSE(full->tls);
  for (const char* wrong : {"", "https://", "ftp://a/", "http://", "a:0/", "a:b", "a:99999",
                            "http://[::1/", "a/b c", "a/\r\nX: y"}) {
    EXPECT_FALSE(ParseHttpUrl(wrong).ok()) << wrong;
  }
}

}  // namespace
}  // namespace normd::client
