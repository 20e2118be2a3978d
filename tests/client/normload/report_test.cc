#include "client/normload/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "client/normload/options.h"
#include "client/normload/progress.h"
#include "nlohmann/json.hpp"

namespace normd::load {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using Json = nlohmann::json;

// A run of ten seconds with answers after 1 ms, 2 ms ... `ok` ms.
RunReport RunOf(double load, int ok) {
  RunReport run;
  run.load = load;
  run.result.reason = StopReason::kDuration;
  run.result.elapsed = seconds(10);
  run.result.unsent = 3;
  Measurement& m = run.result.measured;
  m.items.resize(2);
  for (int i = 1; i <= ok; ++i) {
    ++m.codes[0];
    m.response_time.Record(milliseconds(i));
    m.service_time.Record(microseconds(900 * i));
    m.send_lag.Record(microseconds(100 * i));
    m.items[i % 2].response_time.Record(milliseconds(i));
  }
  m.codes[8] = 2;
  m.items[1].errors = 2;
  m.first_message[8] = "queue: full, \xff and no UTF-8";
  m.warmup_requests = 5;
  m.cancelled = 4;
  m.sent_bytes = 1000;
  m.received_bytes = 900;
  m.stage_sum[4] = microseconds(10) * ok;
  m.in_batches = ok;
  m.batches = ok / 2.0;
  m.max_batch_requests = 4;
  m.verified = 7;
  Interval interval = WholeRun(run.result);
  interval.end = seconds(5);
  run.intervals = {interval, interval};
  run.intervals[1].begin = seconds(5);
  run.intervals[1].end = seconds(10);
  return run;
}

Report ReportOf(const std::vector<std::string>& arguments, std::vector<RunReport> runs) {
  Report report;
  std::vector<std::string> all = {
      "--mix=a:1x4:f16:3:timeout=20ms,b:2x8:priority=low:queue_timeout=1s"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  report.options = ParseOptions(all).value();
  report.started_at = "2026-11-21T02:00:00Z";
  report.client_host = "here";
  report.client_cpus = 2;
  report.server.set_version("1.2");
  report.server.add_lanes("cpu:0");
  report.runs = std::move(runs);
  return report;
}

// One entry, which streams.
Report StreamReport() {
  Report report = ReportOf({}, {RunOf(16, 100)});
  report.options.mix.resize(1);
  report.options.mix[0].stream_chunk_bytes = 4096;
  report.runs[0].result.measured.batches = 0;
  report.runs[0].result.measured.in_batches = 0;
  std::vector<ItemMeasurement>& items = report.runs[0].result.measured.items;
  items.resize(1);
  items[0].first_bytes.Record(milliseconds(3));
  items[0].sent_bytes = 70000000;
  items[0].received_bytes = 60000000;
  return report;
}

TEST(TextReportTest, TellsOfAStream) {
  const std::string text = TextReport(StreamReport());
  EXPECT_THAT(text, HasSubstr("stream=4KiB: 50 ok, 0 errors, 7.0 MB/s out, 6.0 MB/s back"));
  EXPECT_THAT(text, HasSubstr("first bytes         3.0"));
  EXPECT_THAT(text, Not(HasSubstr("batches")));
}

TEST(NotesTest, WarnsOfNumbersThatSayLess) {
  Report report = ReportOf({"--rate=50"}, {RunOf(50, 100)});
  EXPECT_THAT(TextReport(report), HasSubstr("note: 3 requests were still waiting to leave"));
  EXPECT_THAT(TextReport(report), HasSubstr("note: of 100 responses, p99.9 is the longest"));
  report.runs[0].result.unsent = 0;
  // The lag is a tenth of the response time.
  EXPECT_THAT(TextReport(report), Not(HasSubstr("the client itself was late")));
  for (int i = 0; i < 1000; ++i) {
    ++report.runs[0].result.measured.codes[0];
    report.runs[0].result.measured.send_lag.Record(milliseconds(60));
  }
  EXPECT_THAT(Notes(report),
              ElementsAre(HasSubstr("the client itself was late: the 99th percentile of its send "
                                    "lag is 60.0 ms")));
}

TEST(NotesTest, WarnsOfAnObjectiveThatAFewResponsesDecide) {
  const Report few = ReportOf({"--rate=50", "--slo=p99=1s"}, {RunOf(50, 250)});
  EXPECT_THAT(TextReport(few),
              HasSubstr("note: of 250 responses, the slowest 3 decide whether p99"));
  const Report enough = ReportOf({"--rate=50", "--slo=p99=1s"}, {RunOf(50, 1000)});
  EXPECT_THAT(TextReport(enough), Not(HasSubstr("decide whether")));
}

TEST(JsonReportTest, TellsOfAStream) {
  const Json report = Json::parse(JsonReport(StreamReport()));
  EXPECT_EQ(report["options"]["mix"][0]["stream_chunk_bytes"], 4096);
  const Json& entry = report["result"]["by_entry"][0];
  EXPECT_EQ(entry["sent_bytes"], 70000000);
  EXPECT_EQ(entry["received_bytes"], 60000000);
  EXPECT_EQ(entry["first_bytes"]["count"], 1);
  EXPECT_EQ(entry["first_bytes"]["max_us"], 3000.0);
}

TEST(JsonReportTest, IsReadAsItWasWritten) {
  Report sweep = ReportOf({"--sweep=rate=10,20", "--slo=p99=5ms", "--cancel_share=0.1"},
                          {RunOf(10, 100), RunOf(20, 200)});
  sweep.chosen = 1;
  sweep.error = absl::UnavailableError("gone");
  client::HistogramGrowth growth;
  growth.count = 3;
  growth.sum_s = 0.5;
  growth.below = {{0.1, 1}, {0.25, 2}};
  sweep.runs[1].server_metrics =
      ServerMetrics{10, {{{"a", growth, growth, {{"queue", growth}}}}, {{"cpu 0", 0.5}}, 7}};
  Report search = ReportOf({"--find_max", "--slo=p99=5ms"}, {RunOf(10, 100)});
  for (const Report& report :
       {ReportOf({}, {RunOf(16, 100)}), ReportOf({"--timeout=inf"}, {RunOf(16, 100)}),
        ReportOf({"--rate=50", "--stable_p99=0.1"}, {RunOf(50, 10)}),
        ReportOf({"--profile=10@1s,0..5@3s", "--stop_error_share=0.5"}, {RunOf(0, 10)}),
        ReportOf({}, {}), sweep, search, StreamReport()}) {
    const std::string text = JsonReport(report);
    const auto read = ParseJsonReport(text);
    ASSERT_TRUE(read.ok()) << read.status() << "\n" << text;
    EXPECT_EQ(Json::parse(JsonReport(*read)), Json::parse(text));
  }
}

TEST(HtmlReportTest, IsOnePageThatHoldsItsData) {
  Report report = ReportOf({"--rate=50", "--slo=p99=5ms"}, {RunOf(50, 100)});
  report.error = absl::InternalError("</script><b>not markup</b> {{style}}");
  const std::string page = HtmlReport(report);
  EXPECT_THAT(page, StartsWith("<!doctype html>"));
  EXPECT_THAT(page, Not(HasSubstr("<b>not markup")));
  // No file, host or script but its own: the only addresses are the name of SVG's elements.
  for (const char* outside : {"src=", "href=", "@import", "url(", "https://", "fetch("}) {
    EXPECT_THAT(page, Not(HasSubstr(outside))) << outside;
  }
  const std::string begin = "<script type=\"application/json\" id=\"data\">";
  const std::size_t from = page.find(begin) + begin.size();
  const Json data = Json::parse(page.substr(from, page.find("</script>", from) - from));
  EXPECT_EQ(data["result"]["ok"], 100);
  EXPECT_EQ(data["error"]["message"], "</script><b>not markup</b> {{style}}");
  // 100 values: up to the 99th percentile.
  const Json& curve = data["result"]["response_time"]["curve"];
  EXPECT_EQ(curve.front(), Json({0.0, 1000.0}));
  EXPECT_NEAR(curve.back()[0].get<double>(), 99, 1e-6);
  EXPECT_FALSE(data["result"]["response_time"].contains("buckets"));
}

TEST(JsonReportTest, WhatIsNoneIsRefused) {
  const auto message = [](const std::string& text) {
    return std::string(ParseJsonReport(text).status().message());
  };
  EXPECT_EQ(message("root:x:0"), "no report of normload: malformed JSON near byte 1");
  EXPECT_EQ(message("[]"), "no report of normload: schema: missing");
  EXPECT_EQ(message(R"({"schema":"normload"})"), "no report of normload: schema_version: missing");
  Json json = Json::parse(JsonReport(ReportOf({}, {RunOf(16, 10)})));
  const auto with = [&](const char* pointer, const Json& value) {
    Json changed = json;
    changed[Json::json_pointer(pointer)] = value;
    return message(changed.dump());
  };
  EXPECT_THAT(with("/schema_version", 99), HasSubstr("schema_version: 99"));
  EXPECT_THAT(with("/result/response_time/buckets/0", Json({1 << 30, 1})), HasSubstr("buckets"));
  EXPECT_THAT(with("/options/mix/0/shape", Json({-1})), HasSubstr("options.mix"));
  EXPECT_THAT(with("/options/sweep", "x"), HasSubstr("options.sweep"));
  EXPECT_THAT(with("/options/find_max", true), HasSubstr("options.slo"));
  EXPECT_THAT(with("/error", Json{{"code", "FINE"}, {"message", ""}}), HasSubstr("FINE"));
  EXPECT_EQ(with("/result/elapsed_s", "long"),
            "no report of normload: result.elapsed_s: unexpected string");
}

TEST(MergeReportsTest, AddsWhatProcessesDidTogether) {
  const auto merged = MergeReports({ReportOf({"--rate=50", "--slo=p99=5ms"}, {RunOf(50, 100)}),
                                    ReportOf({"--rate=70", "--slo=p99=5ms"}, {RunOf(70, 300)})});
  ASSERT_TRUE(merged.ok()) << merged.status();
  EXPECT_EQ(merged->processes, 2);
  EXPECT_EQ(merged->options.rate, 120);
  EXPECT_EQ(merged->options.connections, 32);
  const LoadResult& result = merged->run().result;
  EXPECT_EQ(result.measured.ok(), 400);
  EXPECT_EQ(result.measured.errors(), 4);
  EXPECT_EQ(result.measured.response_time.max(), milliseconds(300));
  EXPECT_NEAR(static_cast<double>(result.measured.response_time.Percentile(50).count()), 100e6,
              1e6);
  EXPECT_EQ(result.unsent, 6);
  EXPECT_EQ(result.elapsed, seconds(10));  // They ran at the same time.
  ASSERT_EQ(merged->run().intervals.size(), 2u);
  const Interval& interval = merged->run().intervals[1];
  EXPECT_EQ(interval.ok, 400);
  EXPECT_EQ(interval.errors, 4);
  // 100 responses of 50.5 ms on average, and 300 of 150.5 ms.
  EXPECT_EQ(interval.mean, microseconds(125500));
  EXPECT_EQ(interval.p99, WholeRun(RunOf(70, 300).result).p99);
}

TEST(MergeReportsTest, RefusesWhatDoesNotBelongTogether) {
  const Report one = ReportOf({}, {RunOf(16, 10)});
  const auto message = [&](const Report& other) {
    return std::string(MergeReports({one, other}).status().message());
  };
  EXPECT_THAT(message(ReportOf({"--rate=5"}, {RunOf(5, 10)})), HasSubstr("differ in mode"));
  EXPECT_THAT(message(ReportOf({"--slo=p99=1s"}, {RunOf(5, 10)})), HasSubstr("differ in slo"));
  EXPECT_THAT(message(ReportOf({"--sweep=concurrency=1"}, {RunOf(1, 10)})), HasSubstr("alone"));
  Report other = one;
  other.options.mix.pop_back();
  EXPECT_THAT(message(other), HasSubstr("differ in mix"));
  EXPECT_FALSE(MergeReports({}).ok());
}

TEST(CsvReportTest, HasARowForEachIntervalAndEachRun) {
  const std::string text =
      CsvReport(ReportOf({"--sweep=concurrency=1,2"}, {RunOf(1, 100), RunOf(2, 100)}));
  const std::vector<std::string> rows = absl::StrSplit(text, '\n');
  ASSERT_EQ(rows.size(), 8u);
  EXPECT_EQ(rows[0],
            "row,load,begin_s,end_s,ok,errors,ok_per_s,mean_us,p50_us,p90_us,p99_us,p99_9_us,"
            "max_us");
  EXPECT_THAT(rows[2], StartsWith("interval,1,5.000,10.000,100,2,20.0,50500.000,"));
  EXPECT_THAT(rows[6], StartsWith("run,2,0.000,10.000,100,2,10.0,50500.000,"));
  EXPECT_EQ(rows[7], "");
}

TEST(TextReportTest, TellsOfTheObjectiveAndOfEachEntry) {
  const std::string text = TextReport(ReportOf({"--rate=50", "--slo=p90=40ms"}, {RunOf(50, 100)}));
  // 40 of the 100 responses, 2 errors and 3 that could not be sent.
  EXPECT_THAT(text, HasSubstr("p90 <= 40ms: missed; 38.095 % within it, goodput 4/s"));
  EXPECT_THAT(text, HasSubstr("a:1x4:float16:timeout=20ms: 50 ok, 0 errors"));
  EXPECT_THAT(text, HasSubstr("b:2x8:float32:priority=low:queue_timeout=1s: 50 ok, 2 errors"));
  EXPECT_THAT(text, HasSubstr("cancelled      4, as asked"));
  EXPECT_THAT(text, HasSubstr("batches        2.00 requests on average, 4 at most"));
}

TEST(TextReportTest, ASweepIsATable) {
  const std::string text = TextReport(
      ReportOf({"--sweep=rate=50,70", "--slo=p99=1s"}, {RunOf(50, 100), RunOf(70, 200)}));
  EXPECT_THAT(text, HasSubstr("sweep, rate=50,70"));
  EXPECT_THAT(text, HasSubstr("\n  50                     10 "));
  EXPECT_THAT(text, HasSubstr("\n  70                     20 "));
}

// `ok` answers of `time` each after `elapsed`.
LoadResult After(Duration elapsed, std::int64_t ok, Duration time) {
  LoadResult result;
  result.elapsed = elapsed;
  result.measured.codes[0] = ok;
  for (std::int64_t i = 0; i < ok; ++i) result.measured.response_time.Record(time);
  return result;
}

std::int64_t LinesOf(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

TEST(ProgressTest, IntervalsTellWhatCameBetweenTwoLooks) {
  Progress progress(nullptr, false);
  progress.Look(After(seconds(1), 10, milliseconds(1)));
  LoadResult later = After(seconds(3), 10, milliseconds(1));
  for (int i = 0; i < 40; ++i) later.measured.response_time.Record(milliseconds(8));
  later.measured.codes[0] = 50;
  later.measured.codes[14] = 2;
  progress.Look(later);
  ASSERT_EQ(progress.intervals().size(), 2u);
  const Interval& second = progress.intervals()[1];
  EXPECT_EQ(second.ok, 40);
  EXPECT_EQ(second.errors, 2);
  EXPECT_EQ(second.rate(), 20);
  EXPECT_NEAR(static_cast<double>(second.p50.count()), 8e6, 8e3);
}

TEST(ProgressTest, ShortIntervalsEndOnlyWithTheRun) {
  Progress progress(nullptr, false);
  progress.Look(After(milliseconds(100), 1, milliseconds(1)));
  EXPECT_TRUE(progress.intervals().empty());
  progress.Finish(After(milliseconds(200), 2, milliseconds(1)));
  EXPECT_EQ(progress.intervals().size(), 1u);
}

TEST(ProgressTest, DrawsItsViewOverAndOverOnATerminal) {
  std::ostringstream out;
  StopOptions goal;
  goal.duration = seconds(4);
  Progress progress(&out, true, goal);
  progress.Look(LoadResult());
  EXPECT_EQ(out.str(), "\r\x1b[Jwarm-up: 0 responses\n");
  progress.Look(After(seconds(1), 1000, milliseconds(2)));
  out.str("");
  progress.Look(After(seconds(2), 3000, milliseconds(2)));
  const std::string view = out.str();
  EXPECT_THAT(view, StartsWith("\x1b[5A\r\x1b[J[███"));  // Over the five lines before.
  EXPECT_THAT(view, HasSubstr("50 %  2.0 s, in flight 0, errors 0\n"));
  EXPECT_THAT(view, HasSubstr("ok/s     2000.000     ▅█\n"));
  EXPECT_THAT(view, HasSubstr("p50         2.000 ms  ██\n"));
  out.str("");
  progress.Finish(After(seconds(3), 3000, milliseconds(2)));
  EXPECT_THAT(out.str(), StartsWith("\x1b[5A\r\x1b[J    3.0 s  75 %       1000/s"));
  EXPECT_EQ(LinesOf(out.str()), 1);
}

TEST(ProgressTest, PrintsLinesElsewhere) {
  std::ostringstream out;
  Progress progress(&out, false);
  progress.Look(LoadResult());
  progress.Look(After(seconds(1), 1000, milliseconds(2)));
  progress.Finish(After(seconds(2), 3000, milliseconds(2)));
  EXPECT_THAT(out.str(), StartsWith("warm-up: 0 responses\n"));
  EXPECT_THAT(out.str(), HasSubstr("2000/s"));
  EXPECT_THAT(out.str(), HasSubstr("p50     2.000 ms"));
  EXPECT_EQ(LinesOf(out.str()), 3);
  for (const char no : {'\r', '\x1b', '%'}) EXPECT_EQ(out.str().find(no), std::string::npos);
}

TEST(ProgressTest, ASecondWithoutAResponseHasNoTimes) {
  std::ostringstream out;
  Progress progress(&out, false);
  LoadResult result;
  result.elapsed = seconds(1);
  result.measured.codes[14] = 5;
  progress.Look(result);
  EXPECT_THAT(out.str(), HasSubstr("0/s  no response with OK  errors 5"));
}

TEST(ProgressTest, TellsHowMuchOfTheRunIsOver) {
  std::ostringstream out;
  StopOptions goal;
  goal.duration = seconds(10);
  goal.requests = 1000;
  Progress progress(&out, false, goal);
  LoadResult result = After(seconds(1), 200, milliseconds(2));
  result.inflight = 7;
  progress.Look(result);
  EXPECT_THAT(out.str(), HasSubstr("1.0 s  20 %  "));
  EXPECT_THAT(out.str(), HasSubstr("in flight 7"));
  progress.Finish(After(seconds(12), 300, milliseconds(2)));
  EXPECT_THAT(out.str(), HasSubstr("12.0 s 100 %  "));
}

}  // namespace
}  // namespace normd::load
