#include "server/metrics/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "prometheus/metric_family.h"
#include "tests/server/metrics/exposition.h"

namespace normd::testing {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using ::testing::Optional;

class MetricsTest : public ::testing::Test {
 protected:
  Exposition Scrape() {
    absl::StatusOr<Exposition> parsed = ParseExposition(metrics_.Scrape());
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    return parsed.ok() ? *std::move(parsed) : Exposition();
  }
  // A counter's, or a histogram's sum's, over all its series.
  static double Total(const Exposition& scrape, const std::string& name) {
    double total = 0;
    for (const auto& [series, value] : scrape.samples) total += series.first == name ? value : 0;
    return total;
  }

  Metrics metrics_{{"1.2.3", "13.0"}};
};

TEST_F(MetricsTest, ExposesEveryFamilyOnceItIsInUse) {
  const auto model = metrics_.ForModel("m", 1);
  model->RecordRequest(Method::kNormalize, absl::StatusCode::kOk, milliseconds(1));
  StageTimes stages;
  stages[Stage::kCompute] = milliseconds(1);
  model->RecordStages(stages);
  model->RecordBatch(1, 64);
  model->RecordLoad(milliseconds(1));
  metrics_.ForLane("cpu", "cpu:0").AddBusy(milliseconds(1));
  metrics_.SetDevice("cpu", "8 threads");
  metrics_.ForConnections(RequestPort::kGrpc);
  metrics_.ForConnections(RequestPort::kHttp);
  const auto watch = metrics_.WatchPool("host", [] { return PoolUse{1, 2}; });

  const std::map<std::string, std::string> wanted = {
      {"normd_requests_total", "counter"},
      {"normd_request_duration_seconds", "histogram"},
      {"normd_stage_duration_seconds", "histogram"},
      {"normd_batch_requests", "histogram"},
      {"normd_batch_bytes", "histogram"},
      {"normd_queue_requests", "gauge"},
      {"normd_queue_limit_requests", "gauge"},
      {"normd_inflight_bytes", "gauge"},
      {"normd_inflight_limit_bytes", "gauge"},
      {"normd_rejected_total", "counter"},
      {"normd_requests_refused_total", "counter"},
      {"normd_payload_bytes_total", "counter"},
      {"normd_lane_busy_seconds_total", "counter"},
      {"normd_lanes", "gauge"},
      {"normd_device_copied_bytes_total", "counter"},
      {"normd_device_info", "gauge"},
      {"normd_model_load_duration_seconds", "histogram"},
      {"normd_models_without_series", "gauge"},
      {"normd_model_versions", "gauge"},
      {"normd_model_load_failures_total", "counter"},
      {"normd_model_repository_polls_total", "counter"},
      {"normd_pool_bytes", "gauge"},
      {"normd_connections", "gauge"},
      {"normd_connections_limit", "gauge"},
      {"normd_connections_accepted_total", "counter"},
      {"normd_connections_refused_total", "counter"},
      {"normd_connections_ended_total", "counter"},
      {"normd_transport_undelivered_bytes", "gauge"},
      {"normd_shared_regions", "gauge"},
      {"normd_shared_region_bytes", "gauge"},
      {"normd_shared_regions_refused_total", "counter"},
      {"normd_shared_connections", "gauge"},
      {"normd_shared_connections_ended_total", "counter"},
      {"normd_shared_locked_bytes", "gauge"},
      {"normd_shared_regions_not_locked_total", "counter"},
      {"normd_shared_regions_broken_total", "counter"},
      {"normd_shared_tensor_bytes_total", "counter"},
      {"normd_ready", "gauge"},
      {"normd_build_info", "gauge"}};
  const Exposition scrape = Scrape();
  EXPECT_EQ(scrape.type, wanted);
  for (const auto& [name, type] : wanted) EXPECT_FALSE(scrape.help.at(name).empty()) << name;
}

TEST_F(MetricsTest, CountsRequestsByModelVersionMethodAndCode) {
  const auto first = metrics_.ForModel("m", 1);
  const auto second = metrics_.ForModel("m", 2);
  first->RecordRequest(Method::kNormalize, absl::StatusCode::kOk, milliseconds(1));
  first->RecordRequest(Method::kNormalize, absl::StatusCode::kOk, milliseconds(2));
  first->RecordRequest(Method::kNormalize, absl::StatusCode::kInvalidArgument, milliseconds(3));
  second->RecordRequest(Method::kNormalize, absl::StatusCode::kOk, milliseconds(4));
  metrics_.ForNoModel().RecordRequest(Method::kNormalize, absl::StatusCode::kNotFound,
                                      milliseconds(5));
  metrics_.ForNoModel().RecordRequest(Method::kListModels, absl::StatusCode::kOk, milliseconds(6));

  const Exposition scrape = Scrape();
  const auto requests = [&scrape](const char* model, const char* version, const char* method,
                                  const char* code) {
    return scrape.Value(
        "normd_requests_total",
        {{"model", model}, {"version", version}, {"method", method}, {"code", code}});
  };
  EXPECT_THAT(requests("m", "1", "Normalize", "OK"), Optional(2));
  EXPECT_THAT(requests("m", "1", "Normalize", "INVALID_ARGUMENT"), Optional(1));
  EXPECT_THAT(requests("m", "2", "Normalize", "OK"), Optional(1));
  EXPECT_THAT(requests("", "", "Normalize", "NOT_FOUND"), Optional(1));
  EXPECT_THAT(requests("", "", "ListModels", "OK"), Optional(1));
  EXPECT_EQ(scrape.Count("normd_requests_total"), 5);  // No code that has not occurred.
}

TEST_F(MetricsTest, VersionsOfAModelShareTheirDurations) {
  metrics_.ForModel("m", 1)->RecordRequest(Method::kNormalize, absl::StatusCode::kOk,
                                           milliseconds(1));
  metrics_.ForModel("m", 2)->RecordRequest(Method::kNormalize, absl::StatusCode::kInternal,
                                           milliseconds(30));
  const Exposition scrape = Scrape();
  const Labels labels = {{"model", "m"}, {"method", "Normalize"}};
  EXPECT_THAT(scrape.Value("normd_request_duration_seconds_count", labels), Optional(2));
  EXPECT_THAT(scrape.Value("normd_request_duration_seconds_sum", labels),
              Optional(::testing::DoubleEq(0.031)));
}

TEST_F(MetricsTest, BucketsAreCumulativeAndEndAtInfinity) {
  const auto model = metrics_.ForModel("m", 1);
  for (const Duration duration : {Duration(microseconds(10)), Duration(microseconds(11)),
                                  Duration(milliseconds(1)), Duration(std::chrono::seconds(11))}) {
    model->RecordRequest(Method::kNormalize, absl::StatusCode::kOk, duration);
  }
  const Exposition scrape = Scrape();
  const auto bucket = [&scrape](const char* bound) {
    return scrape.Value("normd_request_duration_seconds_bucket",
                        {{"model", "m"}, {"method", "Normalize"}, {"le", bound}});
  };
  EXPECT_THAT(bucket("1e-05"), Optional(1));
  EXPECT_THAT(bucket("1.75e-05"), Optional(2));
  EXPECT_THAT(bucket("0.0005"), Optional(2));
  EXPECT_THAT(bucket("0.001"), Optional(3));
  EXPECT_THAT(bucket("10"), Optional(3));
  EXPECT_THAT(bucket("+Inf"), Optional(4));
}

TEST_F(MetricsTest, BoundsReadAsTheyWereChosen) {
  const auto model = metrics_.ForModel("m", 1);
  model->RecordBatch(1, 1);
  model->RecordRequest(Method::kNormalize, absl::StatusCode::kOk, milliseconds(1));
  model->RecordLoad(milliseconds(1));
  for (const auto& [series, value] : Scrape().samples) {
    const auto bound = series.second.find("le");
    if (bound != series.second.end()) {
      EXPECT_LE(bound->second.size(), 10u) << bound->second;  // "4294967296" at most
    }
  }
}

TEST_F(MetricsTest, LeavesOutStagesThatNeverHappened) {
  StageTimes stages;
  stages[Stage::kDecode] = microseconds(5);
  stages[Stage::kCompute] = milliseconds(2);
  metrics_.ForModel("m", 1)->RecordStages(stages);
  const Exposition scrape = Scrape();
  const auto count = [&scrape](const char* stage) {
    return scrape.Value("normd_stage_duration_seconds_count", {{"model", "m"}, {"stage", stage}});
  };
  EXPECT_THAT(count("decode"), Optional(1));
  EXPECT_THAT(count("compute"), Optional(1));
  for (const char* stage : {"queue", "gather", "copy_in", "copy_out", "encode"}) {
    EXPECT_EQ(count(stage), std::nullopt) << stage;
  }
}

TEST_F(MetricsTest, RecordsBatchesQueueRejectionsAndLoads) {
  const auto model = metrics_.ForModel("m", 1);
  model->RecordBatch(3, 4096);
  model->AddQueued(5);
  model->AddQueued(-2);
  model->RecordRejection(Rejection::kQueueFull);
  model->RecordRejection(Rejection::kDraining);
  model->RecordRejection(Rejection::kDraining);
  model->RecordLoad(milliseconds(250));

  const Exposition scrape = Scrape();
  EXPECT_THAT(scrape.Value("normd_batch_requests_bucket", {{"model", "m"}, {"le", "2"}}),
              Optional(0));
  EXPECT_THAT(scrape.Value("normd_batch_requests_bucket", {{"model", "m"}, {"le", "4"}}),
              Optional(1));
  EXPECT_THAT(scrape.Value("normd_batch_bytes_sum", {{"model", "m"}}), Optional(4096));
  EXPECT_THAT(scrape.Value("normd_queue_requests", {{"model", "m"}}), Optional(3));
  const auto rejected = [&scrape](const char* reason) {
    return scrape.Value("normd_rejected_total", {{"model", "m"}, {"reason", reason}});
  };
  EXPECT_THAT(rejected("queue_full"), Optional(1));
  EXPECT_THAT(rejected("draining"), Optional(2));
  EXPECT_THAT(rejected("inflight_bytes"), Optional(0));
  EXPECT_THAT(rejected("inflight_requests"), Optional(0));
  EXPECT_THAT(rejected("not_ready"), Optional(0));
  EXPECT_THAT(scrape.Value("normd_model_load_duration_seconds_sum", {{"model", "m"}}),
              Optional(0.25));
}

TEST_F(MetricsTest, RecordsTheServersOwnSeries) {
  metrics_.AddInflightBytes(1000);
  metrics_.AddInflightBytes(-400);
  metrics_.AddPayload(10, 0);
  metrics_.AddPayload(5, 20);
  metrics_.ForLane("cuda:1", "cuda:1/2").AddBusy(milliseconds(1500));
  Exposition scrape = Scrape();
  EXPECT_THAT(scrape.Value("normd_inflight_bytes"), Optional(600));
  EXPECT_THAT(scrape.Value("normd_payload_bytes_total", {{"direction", "in"}}), Optional(15));
  EXPECT_THAT(scrape.Value("normd_payload_bytes_total", {{"direction", "out"}}), Optional(20));
  EXPECT_THAT(
      scrape.Value("normd_lane_busy_seconds_total", {{"device", "cuda:1"}, {"lane", "cuda:1/2"}}),
      Optional(1.5));
  EXPECT_THAT(scrape.Value("normd_build_info", {{"version", "1.2.3"}, {"cuda", "13.0"}}),
              Optional(1));
  EXPECT_THAT(scrape.Value("normd_ready"), Optional(0));
  metrics_.SetReady(true);
  EXPECT_THAT(Scrape().Value("normd_ready"), Optional(1));
}

TEST_F(MetricsTest, CountsWorkingAndRetiredLanesOfEachDevice) {
  metrics_.ForLane("cuda:0", "0");
  LaneMetrics& second = metrics_.ForLane("cuda:0", "1");
  metrics_.ForLane("cuda:1", "0");
  second.RecordRetired();
  second.RecordRetired();
  const Exposition scrape = Scrape();
  const auto lanes = [&scrape](const char* device, const char* state) {
    return scrape.Value("normd_lanes", {{"device", device}, {"state", state}});
  };
  EXPECT_THAT(lanes("cuda:0", "working"), Optional(1));
  EXPECT_THAT(lanes("cuda:0", "retired"), Optional(1));
  EXPECT_THAT(lanes("cuda:1", "working"), Optional(1));
  EXPECT_THAT(lanes("cuda:1", "retired"), Optional(0));
}

TEST_F(MetricsTest, AddsUpWhatTheLanesOfADeviceCopied) {
  metrics_.ForLane("cuda:0", "0").AddCopied(100, 80);
  metrics_.ForLane("cuda:0", "1").AddCopied(20, 10);
  metrics_.ForLane("cpu", "cpu:0");
  const Exposition scrape = Scrape();
  const auto copied = [&scrape](const char* device, const char* direction) {
    return scrape.Value("normd_device_copied_bytes_total",
                        {{"device", device}, {"direction", direction}});
  };
  EXPECT_THAT(copied("cuda:0", "in"), Optional(120));
  EXPECT_THAT(copied("cuda:0", "out"), Optional(90));
  EXPECT_THAT(copied("cpu", "in"), Optional(0));
}

TEST_F(MetricsTest, ShowsDevicesAndLimits) {
  metrics_.SetDevice("cuda:0", "an older name");
  metrics_.SetDevice("cuda:0", "H200, 139.8 GiB");
  metrics_.SetLimits({1 << 30, 1024});
  const Exposition scrape = Scrape();
  EXPECT_EQ(scrape.Count("normd_device_info"), 1);
  EXPECT_THAT(
      scrape.Value("normd_device_info", {{"device", "cuda:0"}, {"description", "H200, 139.8 GiB"}}),
      Optional(1));
  EXPECT_THAT(scrape.Value("normd_inflight_limit_bytes"), Optional(1 << 30));
  EXPECT_THAT(scrape.Value("normd_queue_limit_requests"), Optional(1024));
}

TEST_F(MetricsTest, HandlesGoOnWhereTheyWereWhenAVersionIsLoadedAgain) {
  const auto before = metrics_.ForModel("m", 1);
  before->RecordRequest(Method::kNormalize, absl::StatusCode::kOk, milliseconds(1));
  const auto after = metrics_.ForModel("m", 1);
  EXPECT_EQ(before, after);
  EXPECT_EQ(&metrics_.ForNoModel(), &metrics_.ForNoModel());
  EXPECT_EQ(&metrics_.ForLane("cpu", "cpu:0"), &metrics_.ForLane("cpu", "cpu:0"));
}

TEST_F(MetricsTest, EscapesLabelValues) {
  const std::string hostile = "a\"b\\c\nd{e=\"f\"} 1";
  metrics_.ForLane(hostile, "cpu:0").AddBusy(milliseconds(1));
  EXPECT_THAT(
      Scrape().Value("normd_lane_busy_seconds_total", {{"device", hostile}, {"lane", "cpu:0"}}),
      Optional(0.001));
}

TEST_F(MetricsTest, ReadsAPoolUntilItsHandleIsGone) {
  int reads = 0;
  auto first = metrics_.WatchPool("host", [&reads] {
    ++reads;
    return PoolUse{100, 20};
  });
  auto second = metrics_.WatchPool("host", [] { return PoolUse{1, 2}; });
  const Labels used = {{"pool", "host"}, {"state", "used"}};
  const Labels free = {{"pool", "host"}, {"state", "free"}};
  Exposition scrape = Scrape();
  EXPECT_THAT(scrape.Value("normd_pool_bytes", used), Optional(101));
  EXPECT_THAT(scrape.Value("normd_pool_bytes", free), Optional(22));
  EXPECT_EQ(reads, 1);

  first.reset();
  scrape = Scrape();
  EXPECT_THAT(scrape.Value("normd_pool_bytes", used), Optional(1));
  EXPECT_EQ(reads, 1);
  second.reset();
  EXPECT_EQ(Scrape().Count("normd_pool_bytes"), 0);
}

TEST_F(MetricsTest, MissesNothingThatManyThreadsRecordDuringScrapes) {
  constexpr int kThreads = 6;
  constexpr int kRounds = 2000;
  // Else the first version's series would go when the last of its threads has ended.
  const std::vector<std::shared_ptr<ModelMetrics>> loaded = {metrics_.ForModel("m", 1),
                                                             metrics_.ForModel("m", 2)};
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([this, t] {
      const auto model = metrics_.ForModel("m", 1 + t % 2);
      LaneMetrics& lane = metrics_.ForLane("cpu", "cpu:0");
      for (int i = 0; i < kRounds; ++i) {
        model->AddQueued(1);
        metrics_.AddInflightBytes(64);
        model->RecordRequest(Method::kNormalize, absl::StatusCode::kOk, microseconds(i));
        model->RecordBatch(1 + i % 8, 64);
        lane.AddBusy(microseconds(1));
        metrics_.AddPayload(64, 64);
        metrics_.AddInflightBytes(-64);
        model->AddQueued(-1);
      }
    });
  }
  double last = 0;
  for (int i = 0; i < 20; ++i) {
    const Exposition scrape = Scrape();
    const double requests = Total(scrape, "normd_requests_total");
    EXPECT_GE(requests, last);  // A counter never goes back.
    last = requests;
    EXPECT_GE(*scrape.Value("normd_inflight_bytes"), 0);
    EXPECT_GE(scrape.Value("normd_queue_requests", {{"model", "m"}}).value_or(0), 0);
  }
  for (std::thread& thread : threads) thread.join();

  const Exposition scrape = Scrape();
  const double all = kThreads * kRounds;
  EXPECT_EQ(Total(scrape, "normd_requests_total"), all);
  EXPECT_EQ(Total(scrape, "normd_request_duration_seconds_count"), all);
  EXPECT_EQ(Total(scrape, "normd_batch_requests_count"), all);
  EXPECT_EQ(Total(scrape, "normd_batch_requests_sum"), all * 4.5);
  EXPECT_EQ(Total(scrape, "normd_batch_bytes_sum"), all * 64);
  EXPECT_EQ(Total(scrape, "normd_payload_bytes_total"), all * 128);
  EXPECT_DOUBLE_EQ(Total(scrape, "normd_lane_busy_seconds_total"), all * 1e-6);
  EXPECT_EQ(Total(scrape, "normd_inflight_bytes"), 0);
  EXPECT_EQ(Total(scrape, "normd_queue_requests"), 0);
}

TEST_F(MetricsTest, TheRepositoryIsCountedByStateAndResult) {
  RepositoryMetrics& repository = metrics_.ForRepository();
  repository.SetVersions({5, 2});
  for (int i = 0; i < 3; ++i) repository.RecordLoadFailure();
  for (const bool complete : {true, false, true}) repository.RecordPoll(complete);
  const std::string text = metrics_.Scrape();
  for (const char* line :
       {"normd_model_versions{state=\"loaded\"} 5\n", "normd_model_versions{state=\"failed\"} 2\n",
        "normd_model_load_failures_total 3\n",
        "normd_model_repository_polls_total{result=\"complete\"} 2\n",
        "normd_model_repository_polls_total{result=\"incomplete\"} 1\n"}) {
    EXPECT_THAT(text, ::testing::HasSubstr(line));
  }
}

TEST_F(MetricsTest, ReloadsOfAPolicyAreCountedWhereThereIsOne) {
  EXPECT_THAT(metrics_.Scrape(), ::testing::Not(::testing::HasSubstr("normd_policy_reloads")));
  PolicyMetrics& policy = metrics_.ForPolicy();
  EXPECT_EQ(*Scrape().Value("normd_policy_reloads_total", {{"result", "taken"}}), 0);
  for (const bool taken : {true, false, true}) policy.RecordReload(taken);
  EXPECT_EQ(*Scrape().Value("normd_policy_reloads_total", {{"result", "taken"}}), 2);
  EXPECT_EQ(*Scrape().Value("normd_policy_reloads_total", {{"result", "refused"}}), 1);
}

TEST_F(MetricsTest, SaturationIsReadAtEachScrape) {
  double ratio = 0.25;
  metrics_.WatchSaturation([&ratio] { return ratio; });
  EXPECT_EQ(*Scrape().Value("normd_saturation_ratio"), 0.25);
  ratio = 1;
  EXPECT_EQ(*Scrape().Value("normd_saturation_ratio"), 1);
}

TEST_F(MetricsTest, RegionsAreCountedByKindReasonAndDirection) {
  RegionMetrics& regions = metrics_.ForRegions();
  regions.AddMapped(RegionPlane::kNamed, 2, 8192);
  regions.AddMapped(RegionPlane::kDescriptor, 1, 4096);
  regions.AddMapped(RegionPlane::kNamed, -1, -4096);
  regions.RecordRefused(RegionRefusal::kLimit);
  regions.AddConnections(3);
  regions.AddConnections(-1);
  regions.RecordConnectionEnded(HandoverEnding::kNoRegion);
  regions.AddLocked(12288);
  regions.AddLocked(-4096);
  regions.RecordNotLocked(PageLockRefusal::kDriver);
  regions.RecordBroken();
  regions.AddTensors(RegionMemory::kHost, 64, 32);
  regions.AddTensors(RegionMemory::kDevice, 16, 8);
  const std::string text = metrics_.Scrape();
  for (const char* line :
       {"normd_shared_regions{kind=\"named\"} 1\n",
        "normd_shared_region_bytes{kind=\"named\"} 4096\n",
        "normd_shared_regions{kind=\"descriptor\"} 1\n",
        "normd_shared_regions_refused_total{reason=\"limit\"} 1\n",
        "normd_shared_regions_refused_total{reason=\"off\"} 0\n", "normd_shared_connections 2\n",
        "normd_shared_connections_ended_total{reason=\"no_region\"} 1\n",
        "normd_shared_connections_ended_total{reason=\"user\"} 0\n",
        "normd_shared_locked_bytes 8192\n",
        "normd_shared_regions_not_locked_total{reason=\"driver\"} 1\n",
        "normd_shared_regions_not_locked_total{reason=\"limit\"} 0\n",
        "normd_shared_regions_broken_total 1\n",
        "normd_shared_tensor_bytes_total{direction=\"in\",memory=\"host\"} 64\n",
        "normd_shared_tensor_bytes_total{direction=\"out\",memory=\"host\"} 32\n",
        "normd_shared_tensor_bytes_total{direction=\"in\",memory=\"device\"} 16\n",
        "normd_shared_tensor_bytes_total{direction=\"out\",memory=\"device\"} 8\n"}) {
    EXPECT_THAT(text, ::testing::HasSubstr(line));
  }
}

}  // namespace
}  // namespace normd::testing
