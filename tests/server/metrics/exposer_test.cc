#include "server/metrics/exposer.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "prometheus/metric_family.h"
#include "tests/server/metrics/exposition.h"

namespace normd {
namespace {

using ::testing::HasSubstr;
using ::testing::Optional;
using ::testing::StartsWith;

constexpr char kAnyPort[] = "127.0.0.1:0";

// What a server on the loopback port answers to a GET, headers and body; empty when there is none.
std::string HttpGet(int port, const std::string& path) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string answer;
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
    const std::string request =
        absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    send(fd, request.data(), request.size(), MSG_NOSIGNAL);
    char chunk[4096];
    for (ssize_t got; (got = recv(fd, chunk, sizeof(chunk), 0)) > 0;) {
      answer.append(chunk, static_cast<std::size_t>(got));
    }
  }
  close(fd);
  return answer;
}

std::string Body(const std::string& answer) {
  const std::size_t end = answer.find("\r\n\r\n");
  return end == std::string::npos ? "" : answer.substr(end + 4);
}

class ExposerTest : public ::testing::Test {
 protected:
  std::unique_ptr<Metrics> metrics_ = CreateMetrics({"1.2.3", ""});
};

TEST_F(ExposerTest, ServesTheMetricsOnAFreePort) {
  metrics_->SetReady(true);
  auto exposer = StartExposer(kAnyPort, *metrics_);
  ASSERT_TRUE(exposer.ok()) << exposer.status();
  EXPECT_GT((*exposer)->port(), 0);
  const std::string answer = HttpGet((*exposer)->port(), "/metrics");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200"));
  const auto scrape = testing::ParseExposition(Body(answer));
  ASSERT_TRUE(scrape.ok()) << scrape.status();
  EXPECT_THAT(scrape->Value("normd_ready"), Optional(1));
  EXPECT_THAT(scrape->Value("process_start_time_seconds"), Optional(::testing::Gt(1e9)));
  EXPECT_THAT(scrape->Value("normd_build_info", {{"version", "1.2.3"}, {"cuda", ""}}), Optional(1));
}

TEST_F(ExposerTest, AnswersOtherPathsWithNotFound) {
  auto exposer = StartExposer(kAnyPort, *metrics_);
  ASSERT_TRUE(exposer.ok()) << exposer.status();
  EXPECT_THAT(HttpGet((*exposer)->port(), "/../etc/passwd"), ::testing::Not(HasSubstr("200 OK")));
  EXPECT_THAT(HttpGet((*exposer)->port(), "/other"), StartsWith("HTTP/1.1 404"));
}

TEST_F(ExposerTest, NamesTheAddressThatIsTaken) {
  auto first = StartExposer(kAnyPort, *metrics_);
  ASSERT_TRUE(first.ok()) << first.status();
  const std::string address = absl::StrCat("127.0.0.1:", (*first)->port());
  const auto second = StartExposer(address, *metrics_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(address));
}

TEST_F(ExposerTest, RefusesWhatIsNotOneAddress) {
  for (const char* bad : {"", "8002", "127.0.0.1", "127.0.0.1:", "127.0.0.1:80x", "127.0.0.1:443s",
                          "127.0.0.1:0,127.0.0.1:0"}) {
    EXPECT_EQ(StartExposer(bad, *metrics_).status().code(), absl::StatusCode::kInvalidArgument)
        << bad;
  }
}

TEST_F(ExposerTest, StopsListeningWhenItIsDestroyed) {
  auto exposer = StartExposer(kAnyPort, *metrics_);
  ASSERT_TRUE(exposer.ok()) << exposer.status();
  const int port = (*exposer)->port();
  ASSERT_THAT(HttpGet(port, "/metrics"), StartsWith("HTTP/1.1 200"));
  exposer->reset();
  EXPECT_EQ(HttpGet(port, "/metrics"), "");
}

// promtool's own verdict on names, help and format.
TEST_F(ExposerTest, PromtoolFindsNoFault) {
  if (std::system("command -v promtool >/dev/null 2>&1") != 0) {
    GTEST_SKIP() << "promtool (Debian package prometheus) is not installed";
  }
  const auto model = metrics_->ForModel("instance_norm_64", 1);
  StageTimes stages;
  stages[Stage::kCompute] = std::chrono::milliseconds(1);
  model->RecordStages(stages);
  model->RecordRequest(Method::kNormalize, absl::StatusCode::kOk, std::chrono::milliseconds(1));
  metrics_->ForLane("cpu", "cpu:0").AddBusy(std::chrono::milliseconds(1));
  const auto watch = metrics_->WatchPool("host", [] { return PoolUse{1, 2}; });

  auto exposer = StartExposer(kAnyPort, *metrics_);
  ASSERT_TRUE(exposer.ok()) << exposer.status();
  FILE* promtool = popen("promtool check metrics 2>&1 >/dev/null", "w");
  ASSERT_NE(promtool, nullptr);
  const std::string text = Body(HttpGet((*exposer)->port(), "/metrics"));
  ASSERT_THAT(text, HasSubstr("normd_stage_duration_seconds_bucket"));
  EXPECT_EQ(fwrite(text.data(), 1, text.size(), promtool), text.size());
  const int status = pclose(promtool);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace normd
