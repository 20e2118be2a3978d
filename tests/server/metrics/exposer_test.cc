#include "server/metrics/exposer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <zlib.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "prometheus/metric_family.h"
#include "server/metrics/scraper.h"
#include "tests/server/http/http_peer.h"
#include "tests/server/metrics/exposition.h"

namespace normd::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Optional;
using ::testing::StartsWith;

constexpr char kAnyPort[] = "127.0.0.1:0";

class ExposerTest : public ::testing::Test {
 protected:
  Metrics metrics_{{"1.2.3", ""}};
};

TEST_F(ExposerTest, ServesTheMetricsOnAFreePort) {
  metrics_.SetReady(true);
  auto exposer = StartExposer(kAnyPort, metrics_);
  ASSERT_TRUE(exposer.ok()) << exposer.status();
  EXPECT_GT((*exposer)->port(), 0);
  const std::string answer = HttpGet((*exposer)->port(), "/metrics");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200"));
  const auto scrape = ParseExposition(HttpBody(answer));
  ASSERT_TRUE(scrape.ok()) << scrape.status();
  EXPECT_THAT(scrape->Value("normd_ready"), Optional(1));
  EXPECT_THAT(scrape->Value("process_start_time_seconds"), Optional(::testing::Gt(1e9)));
  EXPECT_THAT(scrape->Value("normd_build_info", {{"version", "1.2.3"}, {"cuda", ""}}), Optional(1));
}

TEST_F(ExposerTest, AnswersOtherPathsWithNotFound) {
  auto exposer = StartExposer(kAnyPort, metrics_);
  ASSERT_TRUE(exposer.ok()) << exposer.status();
  EXPECT_THAT(HttpGet((*exposer)->port(), "/../etc/passwd"), ::testing::Not(HasSubstr("200 OK")));
  EXPECT_THAT(HttpGet((*exposer)->port(), "/other"), StartsWith("HTTP/1.1 404"));
}

// The server's request to its `refuse` function, for headers as clients may write them.
TEST_F(ExposerTest, AsksWhoeverDecidesBeforeAnythingElse) {
  ExposerOptions options;
  std::atomic<int> probed{0};
  options.probe = [&](absl::string_view) { return ++probed, 200; };
  options.refuse = [](const PathRequest& request) {
    EXPECT_THAT(std::string(request.peer), StartsWith("127.0.0.1:"));
    if (!request.authorization.has_value()) return 401;
    if (request.authorization->empty()) return 429;
    return *request.authorization == "Bearer right" ? 0 : 403;
  };
  auto exposer = StartExposer(kAnyPort, metrics_, options);
  ASSERT_TRUE(exposer.ok()) << exposer.status();
  const int port = (*exposer)->port();
  for (const char* path : {"/metrics", "/", "/status.json", "/v2/health/live", "/other"}) {
    const auto get = [&](const std::string& headers) {
      return HttpGet(port, path, "127.0.0.1", headers);
    };
    EXPECT_THAT(get(""), StartsWith("HTTP/1.1 401"));
    EXPECT_THAT(get(""), HasSubstr("WWW-Authenticate: Bearer\r\n"));
    EXPECT_THAT(get("Authorization: Bearer wrong\r\n"), StartsWith("HTTP/1.1 403"));
    EXPECT_THAT(get("authorization: Bearer right\r\nAuthorization: Bearer right\r\n"),
                StartsWith("HTTP/1.1 429"))
        << "of several nobody can say which is meant";
    EXPECT_THAT(get("Authorization:\r\n"), StartsWith("HTTP/1.1 429"));
    EXPECT_EQ(probed, 0);
    EXPECT_THAT(get("AUTHORIZATION:  Bearer right \r\n"), StartsWith("HTTP/1.1 200"));
    probed = 0;
  }
  const auto scrape = ParseExposition(
      HttpBody(HttpGet(port, "/metrics", "127.0.0.1", "Authorization: Bearer right\r\n")));
  ASSERT_TRUE(scrape.ok()) << scrape.status();
  EXPECT_THAT(scrape->Value("normd_http_responses_total", {{"code", "401"}}), Optional(10));
  EXPECT_THAT(scrape->Value("normd_http_responses_total", {{"code", "403"}}), Optional(5));
}

TEST_F(ExposerTest, NamesTheAddressThatIsTaken) {
  auto first = StartExposer(kAnyPort, metrics_);
  ASSERT_TRUE(first.ok()) << first.status();
  const std::string address = absl::StrCat("127.0.0.1:", (*first)->port());
  const auto second = StartExposer(address, metrics_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(address));
}

TEST_F(ExposerTest, CompressesForThoseWhoTakeIt) {
  auto exposer = StartExposer(kAnyPort, metrics_);
  ASSERT_TRUE(exposer.ok()) << exposer.status();
  const std::string answer =
      HttpGet((*exposer)->port(), "/metrics", "127.0.0.1", "Accept-Encoding: gzip\r\n");
  EXPECT_THAT(answer, HasSubstr("Content-Encoding: gzip\r\n"));
  z_stream stream = {};
  ASSERT_EQ(inflateInit2(&stream, 15 + 16), Z_OK);
  std::string body = HttpBody(answer);
  std::string text(1 << 20, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(body.data());
  stream.avail_in = static_cast<uInt>(body.size());
  stream.next_out = reinterpret_cast<Bytef*>(text.data());
  stream.avail_out = static_cast<uInt>(text.size());
  EXPECT_EQ(inflate(&stream, Z_FINISH), Z_STREAM_END);
  text.resize(stream.total_out);
  inflateEnd(&stream);
  const auto scrape = ParseExposition(text);
  ASSERT_TRUE(scrape.ok()) << scrape.status();
  EXPECT_THAT(scrape->Value("normd_ready"), Optional(0));
}

TEST_F(ExposerTest, TellsOfItsOwnConnections) {
  auto exposer = StartExposer(kAnyPort, metrics_, {std::chrono::milliseconds(20), 64});
  ASSERT_TRUE(exposer.ok()) << exposer.status();
  HttpGet((*exposer)->port(), "/other");
  HttpPeer slow((*exposer)->port());
  slow.ReadAll();
  const auto scrape = ParseExposition(HttpBody(HttpGet((*exposer)->port(), "/metrics")));
  ASSERT_TRUE(scrape.ok()) << scrape.status();
  EXPECT_THAT(scrape->Value("normd_http_responses_total", {{"code", "404"}}), Optional(1));
  EXPECT_THAT(scrape->Value("normd_http_dropped_total", {{"reason", "timeout"}}), Optional(1));
  EXPECT_THAT(scrape->Value("normd_http_connections"), Optional(::testing::Ge(1)));
}

TEST(ScraperTest, MakesOneTextForAllWhoAskWhileAnotherIsMade) {
  std::promise<void> begun;
  std::promise<void> go_on;
  std::atomic<int> made{0};
  Scraper scraper([&] {
    if (++made == 1) {
      begun.set_value();
      go_on.get_future().wait();
    }
    return std::to_string(made);
  });
  std::promise<std::string> first;
  scraper.Ask(false, [&](const Scraper::Text& text) { first.set_value(*text); });
  begun.get_future().wait();
  std::atomic<int> left{10};
  std::promise<void> all;
  for (int i = 0; i < 10; ++i) {
    scraper.Ask(i % 2 == 1, [&, i](const Scraper::Text& text) {
      EXPECT_EQ(*text, i % 2 == 1 ? Gzip("2") : "2");
      if (--left == 0) all.set_value();
    });
  }
  go_on.set_value();
  EXPECT_EQ(first.get_future().get(), "1");
  all.get_future().wait();
  EXPECT_EQ(made, 2);
}

TEST(ScraperTest, TellsThatThereIsNoMemory) {
  Scraper scraper([]() -> std::string { throw std::bad_alloc(); });
  for (const bool gzip : {false, true}) {
    std::promise<Scraper::Text> done;
    scraper.Ask(gzip, [&](Scraper::Text text) { done.set_value(std::move(text)); });
    EXPECT_EQ(done.get_future().get(), nullptr);
  }
}

TEST(ScraperTest, TriesAnAnswerWithoutMemoryAgainAndLosesNoOther) {
  std::promise<void> begin;
  std::promise<void> third;
  std::promise<void> other;
  Scraper scraper([&, begun = begin.get_future().share()] {
    begun.wait();
    return std::string("text");
  });
  scraper.Ask(false, [](const Scraper::Text&) {});
  // These two share the next text.
  scraper.Ask(false, [&, tries = 0](const Scraper::Text& text) mutable {
    EXPECT_EQ(*text, "text");
    if (++tries < 3) throw std::bad_alloc();
    third.set_value();
  });
  scraper.Ask(false, [&](const Scraper::Text&) { other.set_value(); });
  begin.set_value();
  other.get_future().wait();
  third.get_future().wait();
}

// promtool's own verdict on names, help and format.
TEST_F(ExposerTest, PromtoolFindsNoFault) {
  if (std::system("command -v promtool >/dev/null 2>&1") != 0) {
    GTEST_SKIP() << "promtool (Debian package prometheus) is not installed";
  }
  const auto model = metrics_.ForModel("instance_norm_64", 1);
  StageTimes stages;
  stages[Stage::kCompute] = std::chrono::milliseconds(1);
  model->RecordStages(stages);
  model->RecordRequest(Method::kNormalize, absl::StatusCode::kOk, std::chrono::milliseconds(1));
  metrics_.ForLane("cpu", "cpu:0").AddBusy(std::chrono::milliseconds(1));
  const auto watch = metrics_.WatchPool("host", [] { return PoolUse{1, 2}; });

  auto exposer = StartExposer(kAnyPort, metrics_);
  ASSERT_TRUE(exposer.ok()) << exposer.status();
  FILE* promtool = popen("promtool check metrics 2>&1 >/dev/null", "w");
  ASSERT_NE(promtool, nullptr);
  const std::string text = HttpBody(HttpGet((*exposer)->port(), "/metrics"));
  ASSERT_THAT(text, HasSubstr("normd_stage_duration_seconds_bucket"));
  EXPECT_EQ(fwrite(text.data(), 1, text.size(), promtool), text.size());
  const int status = pclose(promtool);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace normd::testing
