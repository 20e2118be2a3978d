#include "client/scrape/http_get.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>

namespace normd::client {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// Answers one connection on loopback with fixed bytes, whatever it is asked, and closes it.
class OneAnswer {
 public:
  explicit OneAnswer(std::string answer) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* any = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(::bind(fd_, any, size), 0);
    EXPECT_EQ(::listen(fd_, 1), 0);
    EXPECT_EQ(::getsockname(fd_, any, &size), 0);
    url_ = {"127.0.0.1", std::to_string(ntohs(address.sin_port)), "/metrics"};
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
  ~OneAnswer() { Join(); }

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
  OneAnswer server(answer);
  return HttpGet(server.url(), std::chrono::seconds(60));
}

TEST(HttpGetTest, ReturnsTheBody) {
  OneAnswer server("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\na 1\r\n");
  const auto body = HttpGet(server.url(), std::chrono::seconds(60));
  ASSERT_TRUE(body.ok()) << body.status();
  EXPECT_EQ(*body, "a 1\r\n");
  EXPECT_THAT(server.Join(), StartsWith("GET /metrics HTTP/1.0\r\nHost: 127.0.0.1:"));
}

TEST(HttpGetTest, OtherAnswersAreErrors) {
  EXPECT_THAT(std::string(Get("HTTP/1.0 404 Not Found\r\n\r\nno").status().message()),
              HasSubstr("/metrics: the answer is HTTP/1.0 404 Not Found"));
  EXPECT_THAT(std::string(Get("SSH-2.0\r\n\r\n").status().message()), HasSubstr("no HTTP"));
  EXPECT_THAT(std::string(Get("").status().message()), HasSubstr("no HTTP"));
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
    OneAnswer gone("HTTP/1.0 200 OK\r\n\r\n");
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
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* any = reinterpret_cast<sockaddr*>(&address);
  ASSERT_EQ(::bind(fd, any, size), 0);
  ASSERT_EQ(::listen(fd, 1), 0);
  ASSERT_EQ(::getsockname(fd, any, &size), 0);
  const HttpUrl url = {"127.0.0.1", std::to_string(ntohs(address.sin_port)), "/"};
  EXPECT_EQ(HttpGet(url, std::chrono::milliseconds(20)).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  ::close(fd);
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
  for (const char* wrong : {"", "https://a/", "http://", "a:0/", "a:b", "a:99999", "http://[::1/",
                            "a/b c", "a/\r\nX: y"}) {
    EXPECT_FALSE(ParseHttpUrl(wrong).ok()) << wrong;
  }
}

}  // namespace
}  // namespace normd::client
