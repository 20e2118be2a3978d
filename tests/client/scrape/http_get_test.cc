#include "client/scrape/http_get.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "client/scrape/metrics_text.h"
#include "server/http/http_server.h"
#include "server/tls/tls_context.h"
#include "tests/support/certificates.h"
#include "tests/support/temp_folder.h"

namespace normd::client {
namespace {

using ::testing::HasSubstr;
using testing::MakeCertificate;
using testing::SecretFolder;
using ::testing::StartsWith;
using testing::TestPki;

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

// Pages over TLS, from the server that normd's metrics port is.

constexpr Duration kTimeout = std::chrono::seconds(60);

class HttpsGetTest : public ::testing::Test {
 protected:
  void Start(const testing::TestCertificate& certificate, ClientAuth auth = ClientAuth::kNone) {
    server_.reset();
    auto context = MakeTlsContext({certificate.certificate, certificate.key,
                                   pki_.authority.certificate, absl::InfiniteFuture()},
                                  {.client_auth = auth});
    ASSERT_TRUE(context.ok()) << context.status();
    HttpServerOptions options;
    options.tls = [context = *std::move(context)] { return context; };
    // Says who asks.
    auto server = HttpServer::Start(
        "127.0.0.1:0", options, [](const HttpRequest& request, HttpServer::Respond respond) {
          std::string text = request.authorization.value_or("no token");
          for (const std::string& uri : request.certificate.uris) text += " " + uri;
          respond({200, "text/plain", false, std::make_shared<std::string>(std::move(text))});
        });
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  absl::StatusOr<std::string> Get(const HttpSecurity& security,
                                  const std::string& host = "127.0.0.1") const {
    return HttpGet({host, std::to_string(server_->port()), "/metrics", true}, kTimeout, security);
  }
  HttpSecurity Trusting(const testing::TestCertificate& authority) const {
    HttpSecurity security;
    security.tls.ca_file = folder_.Write("ca.crt", authority.certificate);
    return security;
  }
  HttpSecurity Showing(const testing::TestCertificate& client) const {
    HttpSecurity security = Trusting(pki_.authority);
    security.tls.cert_file = folder_.Write("client.crt", client.certificate);
    security.tls.key_file = folder_.Write("client.key", client.key);
    return security;
  }

  const TestPki pki_ = {};
  const TestPki other_ = {};
  const SecretFolder folder_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpsGetTest, AsksWithItsCertificateAndItsToken) {
  Start(pki_.server, ClientAuth::kRequire);
  HttpSecurity security = Showing(pki_.client);
  EXPECT_EQ(*Get(security), "no token spiffe://normd.test/client");
  security.token = "secret";
  EXPECT_EQ(*Get(security, "localhost"), "Bearer secret spiffe://normd.test/client");
}

TEST_F(HttpsGetTest, AServerIsKnownByItsAuthorityAndItsName) {
  Start(pki_.server);
  EXPECT_TRUE(Get(Trusting(pki_.authority)).ok());
  const absl::Status foreign = Get(Trusting(other_.authority)).status();
  EXPECT_EQ(foreign.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(foreign.message()), HasSubstr("/metrics: the server's certificate: "));
  EXPECT_FALSE(Get({}).ok()) << "nor is it the system's";

  Start(MakeCertificate({.alternative_names = "DNS:elsewhere.test"}, &pki_.authority));
  HttpSecurity security = Trusting(pki_.authority);
  EXPECT_THAT(std::string(Get(security).status().message()), HasSubstr("mismatch"));
  security.tls.server_name = "elsewhere.test";
  EXPECT_TRUE(Get(security).ok());

  Start(MakeCertificate({.end = absl::Now() - absl::Minutes(1)}, &pki_.authority));
  EXPECT_THAT(std::string(Get(Trusting(pki_.authority)).status().message()),
              HasSubstr("the server's certificate: certificate has expired"));
}

// With TLS 1.3 a client learns of it after its own part of the handshake: from an alert, or from
// the end of the connection, which may overtake the alert.
TEST_F(HttpsGetTest, AServerThatWantsACertificateGivesNothingWithoutIt) {
  Start(pki_.server, ClientAuth::kRequire);
  EXPECT_FALSE(Get(Trusting(pki_.authority)).ok());
  EXPECT_FALSE(Get(Showing(other_.client)).ok());
  EXPECT_TRUE(Get(Showing(pki_.client)).ok());
}

TEST_F(HttpsGetTest, AFileThatCannotBeUsedIsNamed) {
  Start(pki_.server);
  const HttpSecurity good = Showing(pki_.client);
  struct File {
    const char* option;
    std::string TlsOptions::*file;
  };
  for (const auto& [option, file] :
       {File{"tls_ca", &TlsOptions::ca_file}, File{"tls_cert", &TlsOptions::cert_file},
        File{"tls_key", &TlsOptions::key_file}}) {
    for (const std::string& wrong : {folder_.File("absent"), folder_.Write("text", "no PEM")}) {
      HttpSecurity security = good;
      security.tls.*file = wrong;
      const absl::Status status = Get(security).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(option + (": " + wrong)));
    }
  }
  HttpSecurity encrypted = good;
  encrypted.tls.key_file = folder_.Write("locked.key", pki_.client.EncryptedKey());
  EXPECT_THAT(std::string(Get(encrypted).status().message()), HasSubstr("tls_key: "));
  HttpSecurity half = good;
  half.tls.key_file = "";
  EXPECT_THAT(std::string(Get(half).status().message()), HasSubstr("tls_key: empty"));
}

TEST_F(HttpsGetTest, WhoSpeaksNoTlsIsNoServer) {
  auto plain = HttpServer::Start("127.0.0.1:0", {}, [](const HttpRequest&, HttpServer::Respond to) {
    to({200, "text/plain", false, nullptr});
  });
  ASSERT_TRUE(plain.ok());
  server_ = *std::move(plain);
  EXPECT_THAT(std::string(Get(Trusting(pki_.authority)).status().message()), HasSubstr("no TLS"));
}

TEST(ParseMetricsTest, ReadsNamesLabelsAndValues) {
  const auto samples = ParseMetrics(
      "# HELP a b\n# TYPE a counter\na 1\nb{x=\"1\",y=\"a\\\"b\\\\c\\nd\"} 2.5e3 1700000000\r\n"
      "c{} +Inf\n\n");
  ASSERT_TRUE(samples.ok()) << samples.status();
  ASSERT_EQ(samples->size(), 3u);
  EXPECT_EQ((*samples)[0].name, "a");
  EXPECT_EQ((*samples)[0].value, 1);
  EXPECT_EQ((*samples)[1].labels.at("y"), "a\"b\\c\nd");
  EXPECT_EQ((*samples)[1].value, 2500);
  EXPECT_EQ((*samples)[2].labels.size(), 0u);
}

TEST(ParseMetricsTest, NamesTheLineThatIsNone) {
  for (const char* text : {"a", "a b", "{x=\"1\"} 2", "a{x=1} 2", "a{x=\"1\" 2", "a{x=\"1", "a{",
                           "a 1 2 3", "<html>"}) {
    EXPECT_THAT(std::string(ParseMetrics(text).status().message()), HasSubstr("no line of metrics"))
        << text;
  }
}

TEST(HistogramGrowthTest, InterpolatesWithinTheBucket) {
  HistogramGrowth growth;
  growth.count = 100;
  growth.below = {{1, 50}, {2, 90}, {INFINITY, 100}};
  EXPECT_DOUBLE_EQ(growth.Quantile(0.25), 0.5);
  EXPECT_DOUBLE_EQ(growth.Quantile(0.7), 1.5);
  EXPECT_DOUBLE_EQ(growth.Quantile(0.99), 2);
  EXPECT_EQ(HistogramGrowth().Quantile(0.5), 0);
}

TEST(GrowthBetweenTest, IsWhatCameBetweenForEachModel) {
  const std::string before =
      "normd_stage_duration_seconds_sum{model=\"a\",stage=\"queue\"} 1\n"
      "normd_stage_duration_seconds_count{model=\"a\",stage=\"queue\"} 10\n"
      "normd_stage_duration_seconds_bucket{model=\"a\",stage=\"queue\",le=\"0.01\"} 10\n"
      "normd_request_duration_seconds_count{model=\"a\",method=\"Normalize\"} 10\n"
      "normd_request_duration_seconds_count{model=\"quiet\",method=\"Normalize\"} 10\n"
      "normd_lane_busy_seconds_total{device=\"cpu\",lane=\"0\"} 5\n"
      "process_cpu_seconds_total 7\n";
  const std::string after =
      "normd_stage_duration_seconds_sum{model=\"a\",stage=\"queue\"} 3\n"
      "normd_stage_duration_seconds_count{model=\"a\",stage=\"queue\"} 14\n"
      "normd_stage_duration_seconds_bucket{model=\"a\",stage=\"queue\",le=\"0.01\"} 12\n"
      "normd_stage_duration_seconds_bucket{model=\"a\",stage=\"queue\",le=\"+Inf\"} 14\n"
      "normd_request_duration_seconds_count{model=\"a\",method=\"Normalize\"} 14\n"
      "normd_request_duration_seconds_count{model=\"a\",method=\"ModelInfer\"} 3\n"
      "normd_request_duration_seconds_count{model=\"a\",method=\"GetModel\"} 99\n"
      "normd_request_duration_seconds_count{model=\"\",method=\"Normalize\"} 3\n"
      "normd_request_duration_seconds_count{model=\"new\",method=\"Normalize\"} 2\n"
      "normd_request_duration_seconds_count{model=\"quiet\",method=\"Normalize\"} 10\n"
      "normd_lane_busy_seconds_total{device=\"cpu\",lane=\"0\"} 5.5\n"
      "process_cpu_seconds_total 9\n";
  const ServerGrowth growth =
      GrowthBetween(ParseMetrics(before).value(), ParseMetrics(after).value());
  ASSERT_EQ(growth.models.size(), 2u);
  EXPECT_EQ(growth.models[0].model, "a");
  EXPECT_EQ(growth.models[0].request.count, 7);
  const HistogramGrowth& queue = growth.models[0].stages.at("queue");
  EXPECT_EQ(queue.mean_s(), 0.5);
  EXPECT_EQ(queue.below.at(0.01), 2);
  EXPECT_EQ(growth.models[1].model, "new");
  EXPECT_EQ(growth.lane_busy_s.at("cpu 0"), 0.5);
  EXPECT_EQ(growth.cpu_s, 2);
}

}  // namespace
}  // namespace normd::client
