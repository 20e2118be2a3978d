// How long a model's series live, and how many there are.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "prometheus/metric_family.h"
#include "server/metrics/histogram.h"
#include "server/metrics/metrics.h"
#include "server/metrics/series_set.h"
#include "server/metrics/sharded_cells.h"
#include "tests/server/metrics/exposition.h"
#include "tests/support/threads.h"

namespace normd::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::Optional;

constexpr std::int64_t kMaxSeries = 5;

class SeriesTest : public ::testing::Test {
 protected:
  using Handle = std::shared_ptr<ModelMetrics>;

  Exposition Scrape() {
    absl::StatusOr<Exposition> parsed = ParseExposition(metrics_->Scrape());
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    return parsed.ok() ? *std::move(parsed) : Exposition();
  }
  static void Ask(const Handle& model) {
    model->RecordRequest(Method::kNormalize, absl::StatusCode::kOk, milliseconds(1));
  }
  static std::optional<double> Requests(const Exposition& scrape, const std::string& model,
                                        const std::string& version) {
    return scrape.Value(
        "normd_requests_total",
        {{"model", model}, {"version", version}, {"method", "Normalize"}, {"code", "OK"}});
  }
  // All series of a model, whichever their names.
  static int CountOf(const Exposition& scrape, const std::string& model) {
    int count = 0;
    for (const auto& [series, value] : scrape.samples) {
      const auto label = series.second.find("model");
      count += label != series.second.end() && label->second == model ? 1 : 0;
    }
    return count;
  }

  static std::unique_ptr<Metrics> MakeMetrics(std::int64_t max_model_series) {
    return std::make_unique<Metrics>(BuildInfo{}, MetricsOptions{max_model_series});
  }

  std::unique_ptr<Metrics> metrics_ = MakeMetrics(kMaxSeries);
};

TEST_F(SeriesTest, AModelThatWasNeverAskedHasOnlyItsLoad) {
  const Handle model = metrics_->ForModel("m", 1);
  EXPECT_EQ(CountOf(Scrape(), "m"), 0);
  model->RecordLoad(milliseconds(2));
  const Exposition scrape = Scrape();
  EXPECT_THAT(
      scrape.Value("normd_model_load_duration_seconds_bucket", {{"model", "m"}, {"le", "0.001"}}),
      Optional(0));
  EXPECT_THAT(
      scrape.Value("normd_model_load_duration_seconds_bucket", {{"model", "m"}, {"le", "0.01"}}),
      Optional(1));
  EXPECT_EQ(CountOf(scrape, "m"), 9);
}

TEST_F(SeriesTest, TheFirstRequestBringsTheQueueAndAllRejections) {
  const Handle model = metrics_->ForModel("m", 1);
  Ask(model);
  const Exposition scrape = Scrape();
  EXPECT_EQ(scrape.Count("normd_rejected_total"), 11);
  EXPECT_THAT(scrape.Value("normd_queue_requests", {{"model", "m"}}), Optional(0));
}

TEST_F(SeriesTest, TwoScrapesSeeTheLastCountsOfAModelThatIsGone) {
  Handle model = metrics_->ForModel("m", 1);
  Ask(model);
  model.reset();
  EXPECT_THAT(Requests(Scrape(), "m", "1"), Optional(1));
  EXPECT_THAT(Requests(Scrape(), "m", "1"), Optional(1));
  EXPECT_EQ(CountOf(Scrape(), "m"), 0);
}

TEST_F(SeriesTest, ACallInFlightKeepsTheSeriesOfAModelThatIsGone) {
  Handle model = metrics_->ForModel("m", 1);
  Handle in_flight = model;
  model.reset();
  for (int i = 0; i < 5; ++i) Scrape();
  Ask(in_flight);
  EXPECT_THAT(Requests(Scrape(), "m", "1"), Optional(1));
  in_flight.reset();
  Scrape();
  Scrape();
  EXPECT_EQ(CountOf(Scrape(), "m"), 0);
}

TEST_F(SeriesTest, AModelThatComesBackInTimeGoesOnCounting) {
  Ask(metrics_->ForModel("m", 1));
  Scrape();
  const Handle again = metrics_->ForModel("m", 1);
  Ask(again);
  for (int i = 0; i < 5; ++i) EXPECT_THAT(Requests(Scrape(), "m", "1"), Optional(2));
}

TEST_F(SeriesTest, AModelThatComesBackLaterBeginsAtZero) {
  Ask(metrics_->ForModel("m", 1));
  Scrape();
  Scrape();
  const Handle again = metrics_->ForModel("m", 1);
  EXPECT_EQ(CountOf(Scrape(), "m"), 0);
  Ask(again);
  EXPECT_THAT(Requests(Scrape(), "m", "1"), Optional(1));
}

TEST_F(SeriesTest, AVersionGoesAloneAndLeavesTheModelsSeries) {
  Handle first = metrics_->ForModel("m", 1);
  const Handle second = metrics_->ForModel("m", 2);
  Ask(first);
  Ask(second);
  first.reset();
  Scrape();
  Scrape();
  const Exposition scrape = Scrape();
  EXPECT_EQ(Requests(scrape, "m", "1"), std::nullopt);
  EXPECT_THAT(Requests(scrape, "m", "2"), Optional(1));
  EXPECT_THAT(scrape.Value("normd_request_duration_seconds_count",
                           {{"model", "m"}, {"method", "Normalize"}}),
              Optional(2));
}

TEST_F(SeriesTest, ModelsBeyondTheLimitCountTogether) {
  std::vector<Handle> models;
  for (std::int64_t i = 0; i < kMaxSeries + 3; ++i) {
    models.push_back(metrics_->ForModel(absl::StrCat("m", i), 1));
    Ask(models.back());
  }
  Exposition scrape = Scrape();
  EXPECT_THAT(scrape.Value("normd_models_without_series"), Optional(3));
  EXPECT_THAT(Requests(scrape, "_other", ""), Optional(3));
  EXPECT_THAT(Requests(scrape, "m4", "1"), Optional(1));
  EXPECT_EQ(CountOf(scrape, "m5"), 0);

  // A model that has its own series keeps them when it is loaded again, and a place that is free is
  // the next one's.
  const Handle again = metrics_->ForModel("m0", 1);
  models.erase(models.begin() + 4);
  models.push_back(metrics_->ForModel("late", 1));
  Ask(models.back());
  scrape = Scrape();
  EXPECT_THAT(scrape.Value("normd_models_without_series"), Optional(3));
  EXPECT_THAT(Requests(scrape, "late", "1"), Optional(1));
  models.clear();
  EXPECT_THAT(Scrape().Value("normd_models_without_series"), Optional(0));
}

TEST_F(SeriesTest, LimitOfNoneCountsEveryModelTogether) {
  metrics_ = MakeMetrics(0);
  const Handle model = metrics_->ForModel("m", 1);
  Ask(model);
  EXPECT_THAT(Requests(Scrape(), "_other", ""), Optional(1));
}

TEST_F(SeriesTest, SeriesOfModelsThatAreGoneAreBoundedWhereNobodyScrapes) {
  constexpr int kModels = 5000;
  for (int i = 0; i < kModels; ++i) {
    const Handle model = metrics_->ForModel(absl::StrCat("m", i), 1);
    model->RecordLoad(milliseconds(1));
  }
  const Exposition scrape = Scrape();
  EXPECT_EQ(scrape.Count("normd_model_load_duration_seconds_sum"),
            static_cast<int>(SeriesSet::kMaxRetired));
  EXPECT_EQ(CountOf(scrape, "m0"), 0);
  EXPECT_GT(CountOf(scrape, absl::StrCat("m", kModels - 1)), 0);
}

// Every method, stage, batch and rejection, before and after: nothing stays.
TEST_F(SeriesTest, MemoryOfModelsThatAreGoneIsFree) {
#ifdef NORMD_SANITIZED
  GTEST_SKIP() << "mallinfo2 does not know a sanitizer's memory";
#endif
  const auto load_and_ask = [this](int i) {
    const Handle model = metrics_->ForModel(absl::StrCat("m", i), 1);
    StageTimes stages;
    for (std::size_t s = 0; s < kStageCount; ++s) stages[static_cast<Stage>(s)] = milliseconds(1);
    model->RecordStages(stages);
    for (int method = 0; method < 7; ++method) {
      model->RecordRequest(static_cast<Method>(method), absl::StatusCode::kOk, milliseconds(1));
    }
    model->RecordBatch(1, 1);
    model->RecordRejection(Rejection::kQueueFull);
    model->AddQueued(1);
    model->RecordLoad(milliseconds(1));
  };
  for (int i = 0; i < 200; ++i) load_and_ask(i);
  for (int i = 0; i < 3; ++i) Scrape();
  const std::size_t before = mallinfo2().uordblks;
  for (int i = 200; i < 2200; ++i) load_and_ask(i);
  for (int i = 0; i < 3; ++i) Scrape();
  EXPECT_LT(mallinfo2().uordblks, before + (std::size_t{64} << 10));
}

TEST_F(SeriesTest, AModelThatWasNeverAskedTakesLittleMemory) {
#ifdef NORMD_SANITIZED
  GTEST_SKIP() << "mallinfo2 does not know a sanitizer's memory";
#endif
  metrics_ = MakeMetrics(10'000);
  std::vector<Handle> models;
  models.reserve(10'000);
  const std::size_t before = mallinfo2().uordblks;
  for (int i = 0; i < 10'000; ++i) {
    models.push_back(metrics_->ForModel(absl::StrCat("m", i), 1));
    models.back()->RecordLoad(milliseconds(1));
  }
  EXPECT_LT((mallinfo2().uordblks - before) / models.size(), 4096u);
}

TEST_F(SeriesTest, HandlesMayOutliveTheMetrics) {
  const Handle model = metrics_->ForModel("m", 1);
  metrics_.reset();
  Ask(model);
}

TEST_F(SeriesTest, LosesNoCountWhileModelsComeAndGoOnManyThreads) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 500;
  const Handle steady = metrics_->ForModel("steady", 1);
  std::atomic<bool> done{false};
  std::thread scraper([&] {
    double last = 0;
    while (!done) {
      const double requests = Requests(Scrape(), "steady", "1").value_or(0);
      EXPECT_GE(requests, last);
      last = requests;
    }
  });
  RunThreads(kThreads, [this, &steady](int t) {
    for (int i = 0; i < kRounds; ++i) {
      // The same names on all threads, so that some come back, some retire and some overflow.
      const Handle model = metrics_->ForModel(absl::StrCat("m", (i + t) % 8), i % 2);
      Ask(model);
      Ask(steady);
    }
  });
  done = true;
  scraper.join();
  EXPECT_THAT(Requests(Scrape(), "steady", "1"), Optional(kThreads * kRounds));
  EXPECT_THAT(Scrape().Value("normd_models_without_series"), Optional(0));
}

class IdentitySeriesTest : public SeriesTest {
 protected:
  static std::optional<double> Calls(const Exposition& scrape, const std::string& identity,
                                     const std::string& outcome = "ok") {
    return scrape.Value("normd_identity_calls_total",
                        {{"identity", identity}, {"outcome", outcome}});
  }
};

TEST_F(IdentitySeriesTest, CallsCountByWhatBecameOfThem) {
  const std::shared_ptr<IdentityMetrics> identity = metrics_->ForIdentity("a");
  EXPECT_EQ(Scrape().Count("normd_identity_calls_total"), 0) << "nothing before the first";
  for (int code = 0; code <= 16; ++code) {
    identity->RecordCall(static_cast<absl::StatusCode>(code), 10);
  }
  const Exposition scrape = Scrape();
  EXPECT_THAT(Calls(scrape, "a", "ok"), Optional(1));
  EXPECT_THAT(Calls(scrape, "a", "denied"), Optional(2));
  EXPECT_THAT(Calls(scrape, "a", "limited"), Optional(1));
  EXPECT_THAT(Calls(scrape, "a", "failed"), Optional(13));
  EXPECT_THAT(scrape.Value("normd_identity_input_bytes_total", {{"identity", "a"}}), Optional(170));
}

TEST_F(IdentitySeriesTest, AnIdentityThatIsGoneIsInTwoScrapesMore) {
  std::shared_ptr<IdentityMetrics> identity = metrics_->ForIdentity("a");
  identity->RecordCall(absl::StatusCode::kOk, 0);
  for (int i = 0; i < 5; ++i) EXPECT_THAT(Calls(Scrape(), "a"), Optional(1));
  identity.reset();
  EXPECT_THAT(Calls(Scrape(), "a"), Optional(1));
  identity = metrics_->ForIdentity("a");  // A new policy has it again.
  for (int i = 0; i < 5; ++i) EXPECT_THAT(Calls(Scrape(), "a"), Optional(1));
  identity.reset();
  EXPECT_THAT(Calls(Scrape(), "a"), Optional(1));
  EXPECT_THAT(Calls(Scrape(), "a"), Optional(1));
  EXPECT_EQ(Calls(Scrape(), "a"), std::nullopt);
}

TEST_F(IdentitySeriesTest, TooManyNamesShareOneSeries) {
  std::vector<std::shared_ptr<IdentityMetrics>> identities;
  for (int i = 0; i < 1010; ++i) {
    identities.push_back(metrics_->ForIdentity(absl::StrCat("i", i)));
    identities.back()->RecordCall(absl::StatusCode::kOk, 0);
  }
  const Exposition scrape = Scrape();
  EXPECT_EQ(scrape.Count("normd_identity_input_bytes_total"), 1001);
  EXPECT_THAT(Calls(scrape, "_other"), Optional(10));
  identities.clear();
  for (int i = 0; i < 3; ++i) Scrape();
  EXPECT_EQ(Scrape().Count("normd_identity_input_bytes_total"), 1) << "_other counts on";
}

// How many values the bucket of upper bound `bound` holds alone; the last one for +Inf.
std::vector<std::uint64_t> BucketCounts(const prometheus::ClientMetric::Histogram& histogram) {
  std::vector<std::uint64_t> counts;
  std::uint64_t before = 0;
  for (const auto& bucket : histogram.bucket) {
    counts.push_back(bucket.cumulative_count - before);
    before = bucket.cumulative_count;
  }
  counts.push_back(histogram.sample_count - before);
  return counts;
}

TEST(HistogramScaleTest, DurationsReachFromTenMicrosecondsToTenSecondsInSmallSteps) {
  const HistogramScale scale = DurationScale();
  EXPECT_EQ(scale.bounds.front(), 10'000);
  EXPECT_EQ(scale.bounds.back(), 10'000'000'000);
  for (std::size_t i = 1; i < scale.bounds.size(); ++i) {
    EXPECT_GT(scale.bounds[i], scale.bounds[i - 1]);
    EXPECT_LE(scale.bounds[i], scale.bounds[i - 1] * 2) << scale.bounds[i];
  }
}

TEST(HistogramScaleTest, BatchesCountInPowers) {
  const HistogramScale requests = BatchRequestsScale();
  for (std::size_t i = 0; i < requests.bounds.size(); ++i) {
    EXPECT_EQ(requests.bounds[i], std::int64_t{1} << i);
  }
  const HistogramScale bytes = BatchBytesScale();
  for (std::size_t i = 0; i < bytes.bounds.size(); ++i) {
    EXPECT_EQ(bytes.bounds[i], std::int64_t{256} << (2 * i));
  }
}

TEST(HistogramTest, ABoundBelongsToItsBucketAndTheNextValueToTheNext) {
  const HistogramScale scale = DurationScale();
  for (std::size_t i = 0; i < scale.bounds.size(); ++i) {
    Histogram histogram(scale);
    histogram.Record(scale.bounds[i]);
    histogram.Record(scale.bounds[i] + 1);
    const std::vector<std::uint64_t> counts = BucketCounts(histogram.Collect());
    for (std::size_t k = 0; k < counts.size(); ++k) {
      EXPECT_EQ(counts[k], k == i || k == i + 1 ? 1u : 0u) << "bound " << i << ", bucket " << k;
    }
  }
}

TEST(HistogramTest, ExposesInTheUnitOfItsScale) {
  Histogram histogram(DurationScale());
  histogram.Record(1'500'000);  // 1.5 ms
  histogram.Record(2'000'000'000);
  const auto collected = histogram.Collect();
  EXPECT_EQ(collected.sample_count, 2u);
  EXPECT_DOUBLE_EQ(collected.sample_sum, 2.0015);
  EXPECT_EQ(collected.bucket.front().upper_bound, 1e-5);
  EXPECT_EQ(collected.bucket.back().upper_bound, 10.0);
}

TEST(HistogramTest, CountsExtremesInTheOuterBuckets) {
  Histogram histogram(BatchRequestsScale());
  histogram.Record(-5);
  histogram.Record(0);
  histogram.Record(std::numeric_limits<std::int64_t>::max());
  const auto collected = histogram.Collect();
  const std::vector<std::uint64_t> counts = BucketCounts(collected);
  EXPECT_EQ(counts.front(), 2u);
  EXPECT_EQ(counts.back(), 1u);
  EXPECT_EQ(collected.sample_count, 3u);
  EXPECT_DOUBLE_EQ(collected.sample_sum, 9223372036854775807.0);
}

TEST(ShardedCellsTest, BeginsAtZeroAndTakesMemoryWithTheFirstAdd) {
  ShardedCells cells(3);
  for (std::size_t cell = 0; cell < 3; ++cell) EXPECT_EQ(cells.Sum(cell), 0);
  EXPECT_TRUE(cells.Untouched());
  cells.Add(2, 0);
  EXPECT_FALSE(cells.Untouched());
}

TEST(ShardedCellsTest, LosesNothingWhenManyThreadsAddFirstAtOnce) {
  for (int round = 0; round < 200; ++round) {
    ShardedCells cells(1);
    std::atomic<int> waiting{4};
    RunThreads(4, [&](int) {
      --waiting;
      while (waiting > 0) std::this_thread::yield();
      cells.Add(0, 1);
    });
    ASSERT_EQ(cells.Sum(0), 4);
  }
}

TEST(ShardedCellsTest, KeepsCellsApartAcrossCacheLines) {
  constexpr std::size_t kCells = 20;
  ShardedCells cells(kCells);
  for (std::size_t cell = 0; cell < kCells; ++cell) {
    cells.Add(cell, static_cast<std::int64_t>(cell) * 3 - 7);
  }
  for (std::size_t cell = 0; cell < kCells; ++cell) {
    EXPECT_EQ(cells.Sum(cell), static_cast<std::int64_t>(cell) * 3 - 7) << cell;
  }
}

TEST(ShardedCellsTest, AddsUpWhatMoreThreadsThanShardsAdd) {
  ShardedCells cells(2);
  RunThreads(24, [&cells](int) {
    for (int i = 0; i < 1000; ++i) {
      cells.Add(0, 2);
      cells.Add(1, -1);
    }
  });
  EXPECT_EQ(cells.Sum(0), 48000);
  EXPECT_EQ(cells.Sum(1), -24000);
}

}  // namespace
}  // namespace normd::testing
