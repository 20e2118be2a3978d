// The live page and its data, as the exposer serves them.

#include "server/metrics/live_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/sha.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "server/metrics/exposer.h"
#include "server/metrics/metrics.h"
#include "server/metrics/status_json.h"
#include "server/metrics/traffic_history.h"
#include "tests/server/http/http_peer.h"
#include "tests/server/metrics/exposition.h"

namespace normd::testing {
namespace {

using ::testing::DoubleNear;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Optional;
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
    exposer_ = *StartExposer("127.0.0.1:0", metrics_, options);
  }
  std::string Ask(const std::string& method, const std::string& path) const {
    HttpPeer peer(exposer_->port());
    peer.Send(absl::StrCat(method, " ", path, " HTTP/1.1\r\nHost: a\r\n\r\n"));
    return peer.ReadAll();
  }
  nlohmann::json Status() const {
    return nlohmann::json::parse(HttpBody(HttpGet(exposer_->port(), "/status.json")));
  }

  Metrics metrics_{{"1.2.3", ""}};
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
  metrics_.SetReady(true);
  metrics_.SetLimits({123, 45});
  metrics_.AddInflightBytes(17);
  metrics_.ForLane("cpu", "cpu:0").AddBusy(std::chrono::milliseconds(1500));
  metrics_.ForConnections(RequestPort::kGrpc).RecordRefused(ConnectionRefusal::kFull);
  const auto watch = metrics_.WatchPool("host", [] { return PoolUse{1, 2}; });
  metrics_.WatchSaturation([] { return 0.5; });
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
  history.Add(metrics_.ReadTraffic(), now);
  metrics_.ForNoModel().RecordRejection(Rejection::kDraining);
  ConnectionMetrics& http = metrics_.ForConnections(RequestPort::kHttp);
  for (const int status : {404, 418, 404, 599}) http.RecordRefusedRequest(status);
  history.Add(metrics_.ReadTraffic(), now += LivePage::kInterval);
  for (std::size_t i = 0; i < TrafficHistory::kMinuteIntervals; ++i) {
    history.Add(metrics_.ReadTraffic(), now += LivePage::kInterval);
  }
  http.RecordRefusedRequest(404);
  history.Add(metrics_.ReadTraffic(), now += LivePage::kInterval);
  const auto status = nlohmann::json::parse(MakeStatusJson({}, history.Recent(), now, {}));
  EXPECT_EQ(status["refusals"],
            nlohmann::json::parse(R"([{"reason": "draining", "minute": 0, "ten_minutes": 1},
                {"reason": "HTTP status 404", "minute": 1, "ten_minutes": 3},
                {"reason": "HTTP status other", "minute": 0, "ten_minutes": 2}])"));
  const auto scrape = ParseExposition(metrics_.Scrape());
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

constexpr TimePoint kBegin = TimePoint(std::chrono::hours(1));
constexpr Duration kInterval = std::chrono::seconds(5);

std::int64_t CountOf(const DurationCounts& counts) {
  std::int64_t sum = 0;
  for (const std::int64_t count : counts) sum += count;
  return sum;
}

// Every value of a bucket lies at an equal distance from the next, which is what between the bounds
// means; the quantile is then among them.
TEST(QuantileTest, LiesAmongTheValuesOfItsBucket) {
  std::mt19937 random(::testing::UnitTest::GetInstance()->random_seed());
  const auto bounds = DurationScale().bounds;
  for (int round = 0; round < 2000; ++round) {
    DurationCounts counts{};
    const int buckets = 1 + static_cast<int>(random() % 5);
    for (int i = 0; i < buckets; ++i) counts[random() % counts.size()] = random() % 1000;
    const std::int64_t all = CountOf(counts);
    double before = 0;
    for (const double share : {0.01, 0.25, 0.5, 0.9, 0.99, 1.0}) {
      const std::optional<double> value = QuantileOf(counts, share);
      ASSERT_EQ(value.has_value(), all > 0);
      if (all == 0) continue;
      ASSERT_GE(*value, before);
      before = *value;
      // At most this share lies in the buckets below the value's, and at least it up to there.
      std::int64_t below = 0;
      std::int64_t up_to = 0;
      for (std::size_t i = 0; i < counts.size(); ++i) {
        const double high = i < bounds.size() ? static_cast<double>(bounds[i]) / 1e9 : 1e9;
        if (high < *value) below += counts[i];
        const double low = i == 0 ? 0 : static_cast<double>(bounds[i - 1]) / 1e9;
        if (low <= *value) up_to += counts[i];
      }
      const double rank = share * static_cast<double>(all);
      EXPECT_LE(static_cast<double>(below), rank + 1e-6);
      EXPECT_GE(static_cast<double>(up_to), rank - 1e-6);
    }
  }
}

TEST(QuantileTest, IsAsPrometheusComputesIt) {
  DurationCounts counts{};
  counts[0] = 4;  // Up to 10 us.
  EXPECT_THAT(QuantileOf(counts, 0.5), Optional(DoubleNear(5e-6, 1e-12)));
  counts[1] = 4;  // Up to 17.5 us.
  EXPECT_THAT(QuantileOf(counts, 0.75), Optional(DoubleNear(13.75e-6, 1e-12)));
  counts = {};
  counts.back() = 1;  // Above all bounds: the highest.
  EXPECT_THAT(QuantileOf(counts, 0.5), Optional(10.0));
  EXPECT_EQ(QuantileOf({}, 0.5), std::nullopt);
}

// A server's counts that only grow, but for a model that now and then begins anew, with no call at
// first: with more than it had it could not be told from one that goes on.
class RandomServer {
 public:
  explicit RandomServer(unsigned seed) : random_(seed) {}

  // What was counted in between, by (model, method).
  using Counted = std::map<std::pair<std::string, Method>, std::pair<std::int64_t, std::int64_t>>;
  Counted Go() {
    Counted counted;
    for (int model = 0; model < 3; ++model) {
      const std::string name(1, static_cast<char>('a' + model));
      if (random_() % 7 == 0) {
        Model(name) = {name, {}, {}, 0};
        continue;
      }
      for (const Method method : {Method::kNormalize, Method::kModelInfer}) {
        if (random_() % 3 == 0) continue;
        MethodTraffic& calls = Calls(Model(name), method);
        const std::int64_t requests = static_cast<std::int64_t>(random_() % 50);
        const std::int64_t failed = requests == 0 ? 0 : random_() % requests;
        calls.durations[random_() % calls.durations.size()] += requests;
        calls.failed += failed;
        if (requests > 0) counted[{name, method}] = {requests, failed};
      }
      Model(name).queued = random_() % 5;
    }
    lanes_[0].busy_seconds += 1.25;
    traffic_.lanes = lanes_;
    return counted;
  }
  const Traffic& traffic() const { return traffic_; }

 private:
  ModelTraffic& Model(const std::string& name) {
    for (ModelTraffic& model : traffic_.models) {
      if (model.model == name) return model;
    }
    return traffic_.models.emplace_back(ModelTraffic{name, {}, {}, 0});
  }
  static MethodTraffic& Calls(ModelTraffic& model, Method method) {
    for (MethodTraffic& calls : model.methods) {
      if (calls.method == method) return calls;
    }
    model.methods.emplace_back().method = method;
    return model.methods.back();
  }

  std::mt19937 random_;
  Traffic traffic_;
  std::vector<LaneBusyTime> lanes_ = {{"cpu", "cpu:0", 0}};
};

TEST(TrafficHistoryTest, SumsTheLastMinuteByModelAndMethodAndKeepsTenMinutes) {
  RandomServer server(::testing::UnitTest::GetInstance()->random_seed());
  TrafficHistory history;
  std::deque<RandomServer::Counted> rounds;
  server.Go();
  history.Add(server.traffic(), kBegin);
  EXPECT_TRUE(history.Recent().calls.empty()) << "what was before the first reading is no minute's";
  for (int round = 1; round <= 150; ++round) {
    rounds.push_back(server.Go());
    if (rounds.size() > TrafficHistory::kMinuteIntervals) rounds.pop_front();
    history.Add(server.traffic(), kBegin + round * kInterval);

    RandomServer::Counted wanted;
    std::int64_t all = 0;
    for (const RandomServer::Counted& counted : rounds) {
      for (const auto& [key, sums] : counted) {
        wanted[key].first += sums.first;
        wanted[key].second += sums.second;
        all += sums.first;
      }
    }
    const RecentTraffic recent = history.Recent();
    RandomServer::Counted found;
    for (const RecentCalls& calls : recent.calls) {
      found[{calls.model, calls.method}] = {calls.calls.requests, calls.calls.failed};
    }
    ASSERT_EQ(found, wanted) << "round " << round;
    ASSERT_EQ(recent.all.requests, all);
    const auto minute = static_cast<double>(std::min<std::size_t>(round, 12)) * 5;
    ASSERT_EQ(recent.seconds, minute);
    ASSERT_EQ(recent.intervals.size(), std::min<std::size_t>(round, TrafficHistory::kIntervals));
    ASSERT_DOUBLE_EQ(recent.lanes.at(0).busy_seconds, minute / 4);
    std::int64_t queued = 0;
    for (const ModelTraffic& model : server.traffic().models) queued += model.queued;
    ASSERT_EQ(recent.intervals.back().queued, queued);
  }
}

TEST(TrafficHistoryTest, CountsFromZeroWhereThereAreFewerThanBefore) {
  TrafficHistory history;
  Traffic traffic;
  traffic.models = {{"a", {{Method::kModelInfer, 1, {}}}, {}, 0}};
  std::int64_t& requests = traffic.models[0].methods[0].durations[3];
  requests = 10;
  history.Add(traffic, kBegin);
  requests = 4;
  history.Add(traffic, kBegin + kInterval);
  EXPECT_EQ(history.Recent().all.requests, 4);
  EXPECT_EQ(history.Recent().all.failed, 1);
}

TEST(TrafficHistoryTest, CountsRefusalsByReasonAlsoOfModelsThatBeginAnew) {
  const auto refused = static_cast<std::size_t>(Rejection::kLate);
  TrafficHistory history;
  Traffic traffic;
  traffic.models = {{"a", {}, {}, 0}};
  history.Add(traffic, kBegin);
  traffic.models[0].rejected[refused] = 5;
  history.Add(traffic, kBegin + kInterval);
  traffic.models[0].rejected[refused] = 2;
  history.Add(traffic, kBegin + 2 * kInterval);
  const RecentTraffic recent = history.Recent();
  ASSERT_EQ(recent.intervals.size(), 2u);
  EXPECT_EQ(recent.intervals[0].rejected[refused], 5);
  EXPECT_EQ(recent.intervals[1].rejected[refused], 2);
}

// Every method and code: what the page counts is what a scrape counts.
TEST(ReadTrafficTest, AgreesWithTheCountersOfEveryMethodAndCode) {
  Metrics metrics{{"1.2.3", ""}};
  const auto first = metrics.ForModel("m", 1);
  const auto second = metrics.ForModel("m", 2);
  for (std::size_t method = 0; method < kMethodCount; ++method) {
    for (int code = 0; code <= 16; ++code) {
      for (const auto& model : {first, second}) {
        model->RecordRequest(static_cast<Method>(method), static_cast<absl::StatusCode>(code),
                             std::chrono::microseconds(1 << code));
      }
    }
  }
  first->RecordRejection(Rejection::kQueueFull);
  first->AddQueued(3);
  const Traffic traffic = metrics.ReadTraffic();
  ASSERT_EQ(traffic.models.size(), 3u) << "the model, no model and the others";
  const ModelTraffic& model = traffic.models[0];
  EXPECT_EQ(model.model, "m");
  EXPECT_EQ(model.queued, 3);
  EXPECT_EQ(model.rejected[static_cast<std::size_t>(Rejection::kQueueFull)], 1);
  std::vector<std::string> methods;
  for (const MethodTraffic& calls : model.methods) {
    methods.emplace_back(MethodName(calls.method));
    EXPECT_EQ(CountOf(calls.durations), 34) << MethodName(calls.method);
    EXPECT_EQ(calls.failed, 32) << MethodName(calls.method);
  }
  EXPECT_THAT(methods, ::testing::IsSupersetOf(
                           {"Normalize", "NormalizeStream", "ModelInfer", "ModelStreamInfer"}));
  EXPECT_THAT(methods, ::testing::Not(::testing::Contains("GetModel")));
}

}  // namespace
}  // namespace normd::testing
