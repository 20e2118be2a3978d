#include "client/scrape/metrics_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

namespace normd::client {
namespace {

using ::testing::HasSubstr;

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
