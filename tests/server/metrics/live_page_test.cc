// The live page and its data, as the exposer serves them.

#include "server/metrics/live_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/sha.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "server/metrics/exposer.h"
#include "server/metrics/status_json.h"
#include "server/metrics/traffic_history.h"
#include "tests/server/http/http_peer.h"
#include "tests/server/metrics/exposition.h"

namespace normd::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::string Between(const std::string& text, const std::string& begin, const std::string& end) {
  const std::size_t from = text.find(begin) + begin.size();
  return text.substr(from, text.find(end, from) - from);
}

std::string Sha256(const std::string& text) {
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest);
  unsigned char base64[64];
  EVP_EncodeBlock(base64, digest, sizeof(digest));
  return reinterpret_cast<const char*>(base64);
}

class LivePageTest : public ::testing::Test {
 protected:
  LivePageTest() {
    ExposerOptions options;
    options.facts = [this] { return facts_; };
    exposer_ = *StartExposer("127.0.0.1:0", *metrics_, options);
  }
  std::string Ask(const std::string& method, const std::string& path) const {
    HttpPeer peer(exposer_->port());
    peer.Send(absl::StrCat(method, " ", path, " HTTP/1.1\r\nHost: a\r\n\r\n"));
    return peer.ReadAll();
  }
  nlohmann::json Status() const {
    return nlohmann::json::parse(HttpBody(HttpGet(exposer_->port(), "/status.json")));
  }

  std::unique_ptr<Metrics> metrics_ = CreateMetrics({"1.2.3", ""});
  ServerFacts facts_;
  std::unique_ptr<Exposer> exposer_;
};

TEST_F(LivePageTest, AllowsItsOwnScriptAndStyleAndNothingElse) {
  const std::string answer = HttpGet(exposer_->port(), "/");
  ASSERT_THAT(answer, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(answer, HasSubstr("Content-Type: text/html; charset=utf-8\r\n"));
  EXPECT_THAT(answer, HasSubstr("X-Content-Type-Options: nosniff\r\n"));
  const std::string page = HttpBody(answer);
  EXPECT_EQ(Between(answer, "Content-Security-Policy: ", "\r\n"),
            absl::StrCat("default-src 'none'; script-src 'sha256-",
                         Sha256(Between(page, "<script>", "</script>")), "'; style-src 'sha256-",
                         Sha256(Between(page, "<style>", "</style>")),
                         "'; connect-src 'self'; img-src data:; base-uri 'none'; "
                         "form-action 'none'; frame-ancestors 'none'"));
  EXPECT_LT(page.size(), 100u << 10);
  // Neither another host nor a way to change something.
  for (const char* no : {"https:", "src=", "<form", "method:", "POST", "innerHTML", "{{"}) {
    EXPECT_THAT(page, Not(HasSubstr(no)));
  }
}

TEST_F(LivePageTest, FollowsTheRulesOfThePort) {
  for (const char* path : {"/", "/status.json"}) {
    const std::string head = Ask("HEAD", path);
    EXPECT_THAT(head, StartsWith("HTTP/1.1 200")) << path;
    EXPECT_EQ(HttpBody(head), "") << path;
    for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS"}) {
      EXPECT_THAT(Ask(method, path), StartsWith("HTTP/1.1 405")) << method << " " << path;
    }
  }
  EXPECT_THAT(HttpGet(exposer_->port(), "/status.json"), HasSubstr("Cache-Control: no-store\r\n"));
  for (const char* path : {"//", "/index.html", "/status", "/status.json/", "/page.js"}) {
    EXPECT_THAT(HttpGet(exposer_->port(), path), StartsWith("HTTP/1.1 404")) << path;
  }
}

TEST_F(LivePageTest, TellsWhyTheServerIsNotReadyAndWhichModelsFailed) {
  facts_.not_ready = "no model is loaded";
  facts_.models = {{"m", 7, false, std::string("bad \xff\"</script>") + std::string(9000, 'x'),
                    std::chrono::minutes(2)}};
  const nlohmann::json status = Status();
  EXPECT_EQ(status["ready"], false);
  EXPECT_EQ(status["not_ready"], "no model is loaded");
  const nlohmann::json& model = status["models"].at(0);
  EXPECT_EQ(model["name"], "m");
  EXPECT_EQ(model["version"], 7);
  EXPECT_EQ(model["state"], "failed");
  EXPECT_EQ(model["age"], 120);
  EXPECT_LT(model["error"].get<std::string>().size(), 600u);
}

// Every counter and gauge that is no model's, but those that change from one request to the next.
TEST_F(LivePageTest, ShowsTheNumbersOfAScrape) {
  metrics_->SetReady(true);
  metrics_->SetLimits({123, 45});
  metrics_->AddInflightBytes(17);
  metrics_->ForLane("cpu", "cpu:0").AddBusy(std::chrono::milliseconds(1500));
  metrics_->ForConnections(RequestPort::kGrpc).RecordRefused(ConnectionRefusal::kFull);
  const auto watch = metrics_->WatchPool("host", [] { return PoolUse{1, 2}; });
  metrics_->WatchSaturation([] { return 0.5; });
  const auto scrape = ParseExposition(HttpBody(HttpGet(exposer_->port(), "/metrics")));
  ASSERT_TRUE(scrape.ok()) << scrape.status();
  const nlohmann::json metrics = Status()["metrics"];
  int compared = 0;
  for (const auto& [series, value] : scrape->samples) {
    const auto& [name, labels] = series;
    if (name.rfind("process_", 0) == 0 || name.rfind("normd_http_", 0) == 0) continue;
    if (name == "normd_models_without_series") continue;
    double found = -1;
    for (const nlohmann::json& one : metrics.at(name)) {
      bool same = one.size() == labels.size() + 1;
      for (const auto& [label, text] : labels) same = same && one.value(label, "?") == text;
      if (same) found = one["value"];
    }
    EXPECT_EQ(found, value) << name;
    ++compared;
  }
  EXPECT_GT(compared, 40);
}

TEST_F(LivePageTest, CountsRefusedRequestsThatBeganNoCallWhateverTheirStatus) {
  TrafficHistory history;
  TimePoint now{};
  history.Add(metrics_->ReadTraffic(), now);
  metrics_->ForNoModel().RecordRejection(Rejection::kDraining);
  ConnectionMetrics& http = metrics_->ForConnections(RequestPort::kHttp);
  for (const int status : {404, 418, 404, 599}) http.RecordRefusedRequest(status);
  history.Add(metrics_->ReadTraffic(), now += LivePage::kInterval);
  for (std::size_t i = 0; i < TrafficHistory::kMinuteIntervals; ++i) {
    history.Add(metrics_->ReadTraffic(), now += LivePage::kInterval);
  }
  http.RecordRefusedRequest(404);
  history.Add(metrics_->ReadTraffic(), now += LivePage::kInterval);
  const auto status = nlohmann::json::parse(MakeStatusJson({}, history.Recent(), now, {}));
  EXPECT_EQ(status["refusals"],
            nlohmann::json::parse(R"([{"reason": "draining", "minute": 0, "ten_minutes": 1},
                {"reason": "HTTP status 404", "minute": 1, "ten_minutes": 3},
                {"reason": "HTTP status other", "minute": 0, "ten_minutes": 2}])"));
  const auto scrape = ParseExposition(metrics_->Scrape());
  ASSERT_TRUE(scrape.ok()) << scrape.status();
  EXPECT_EQ(scrape->Value("normd_requests_refused_total", {{"status", "404"}}), 3);
  EXPECT_EQ(scrape->Value("normd_requests_refused_total", {{"status", "other"}}), 2);
}

// Whoever looks costs one text a second, however many look.
TEST_F(LivePageTest, GivesAllWhoAskWithinASecondOneText) {
  const std::string first = HttpBody(HttpGet(exposer_->port(), "/status.json"));
  int others = 0;
  for (int i = 0; i < 20; ++i) {
    others += HttpBody(HttpGet(exposer_->port(), "/status.json")) == first ? 0 : 1;
  }
  // A second may pass between two of them.
  EXPECT_LE(others, 19);
  EXPECT_EQ(nlohmann::json::parse(first)["models"].size(), 0u);
}

}  // namespace
}  // namespace normd::testing
