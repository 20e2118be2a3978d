#include <unistd.h>

#include <chrono>
#include <thread>

#include "absl/strings/str_cat.h"
#include "client/normload/report.h"
#include "nlohmann/json.hpp"

namespace normd::load {
namespace {

using Json = nlohmann::ordered_json;

double Seconds(Duration d) { return std::chrono::duration<double>(d).count(); }
double Microseconds(Duration d) { return std::chrono::duration<double, std::micro>(d).count(); }

double PerSecond(std::int64_t amount, Duration elapsed) {
  return elapsed > Duration{0} ? static_cast<double>(amount) / Seconds(elapsed) : 0;
}

Json OptionsJson(const ProgramOptions& o) {
  Json mix = Json::array();
  for (const MixEntry& entry : o.mix) {
    const auto dims = entry.shape.dims();
    mix.push_back({{"model", entry.model},
                   {"shape", std::vector<std::int64_t>(dims.begin(), dims.end())},
                   {"dtype", norm::Name(entry.dtype)},
                   {"weight", entry.weight}});
  }
  Json json = {{"server", o.server},
               {"mode", o.open_loop() ? "open" : "closed"},
               {"connections", o.connections},
               {"mix", mix},
               {"version", o.version},
               {"seed", o.seed},
               {"timeout_s", absl::ToDoubleSeconds(o.timeout)},
               {"warmup_s", absl::ToDoubleSeconds(o.warmup)},
               {"verify_every", o.verify ? o.verify_every : 0}};
  if (o.open_loop()) {
    json["rate_per_s"] = o.rate;
    json["arrival"] = o.arrival;
    json["max_inflight"] = o.max_inflight;
  } else {
    json["concurrency"] = o.concurrency;
  }
  if (o.duration != absl::InfiniteDuration()) {
    json["duration_s"] = absl::ToDoubleSeconds(o.duration);
  }
  if (o.requests > 0) json["requests"] = o.requests;
  return json;
}

Json EnvironmentJson(const v1::GetServerInfoResponse& server) {
  char host[256] = {};
  ::gethostname(host, sizeof(host) - 1);
  return {{"client_host", host},
          {"client_cpus", std::thread::hardware_concurrency()},
          {"server_version", server.version()},
          {"server_lanes", std::vector<std::string>(server.lanes().begin(), server.lanes().end())},
          {"server_simd", server.simd()},
          {"server_cuda", server.cuda()}};
}

Json HistogramJson(const Histogram& histogram) {
  Json json = {{"count", histogram.count()},
               {"min_us", Microseconds(histogram.min())},
               {"mean_us", Microseconds(histogram.mean())},
               {"max_us", Microseconds(histogram.max())}};
  const std::pair<const char*, double> percentiles[] = {
      {"p50_us", 50}, {"p90_us", 90}, {"p99_us", 99}, {"p99_9_us", 99.9}, {"p99_99_us", 99.99}};
  for (const auto& [name, percent] : percentiles) {
    json[name] = Microseconds(histogram.Percentile(percent));
  }
  json["sum_ns"] = histogram.sum().count();
  json["min_ns"] = histogram.min().count();
  json["max_ns"] = histogram.max().count();
  Json buckets = Json::array();
  for (const Histogram::Bucket& bucket : histogram.Buckets()) {
    buckets.push_back({bucket.index, bucket.count});
  }
  json["buckets"] = std::move(buckets);
  return json;
}

Json ResultJson(const Report& report) {
  const LoadResult& result = report.result;
  const Measurement& m = result.measured;
  Json codes = Json::object();
  Json messages = Json::object();
  for (std::size_t code = 0; code < kStatusCodes; ++code) {
    if (m.codes[code] == 0) continue;
    codes[CodeName(code)] = m.codes[code];
    if (code != 0) messages[CodeName(code)] = m.first_message[code];
  }
  Json stages = Json::object();
  for (std::size_t i = 0; i < kServerStages; ++i) {
    stages[kServerStageNames[i]] = Microseconds(m.MeanStage(i));
  }
  return {{"stopped_by", Name(result.reason)},
          {"elapsed_s", Seconds(result.elapsed)},
          {"requests", m.requests()},
          {"ok", m.ok()},
          {"errors", m.errors()},
          {"error_share", m.error_share()},
          {"unsent", result.unsent},
          {"warmup_requests", m.warmup_requests},
          {"codes", codes},
          {"first_messages", messages},
          {"ok_per_s", PerSecond(m.ok(), result.elapsed)},
          {"sent_bytes", m.sent_bytes},
          {"received_bytes", m.received_bytes},
          {"response_time", HistogramJson(m.response_time)},
          {"service_time", HistogramJson(m.service_time)},
          {"send_lag", HistogramJson(m.send_lag)},
          {"server_stage_means_us", stages},
          {"batch_requests", {{"mean", m.MeanBatchRequests()}, {"max", m.max_batch_requests}}},
          {"verified", m.verified},
          {"wrong", m.wrong}};
}

Json IntervalsJson(const std::vector<Interval>& intervals) {
  Json json = Json::array();
  for (const Interval& interval : intervals) {
    json.push_back({{"begin_s", Seconds(interval.begin)},
                    {"end_s", Seconds(interval.end)},
                    {"ok", interval.ok},
                    {"errors", interval.errors},
                    {"p50_us", Microseconds(interval.p50)},
                    {"p99_us", Microseconds(interval.p99)}});
  }
  return json;
}

}  // namespace

std::string JsonReport(const Report& report) {
  Json json = {{"schema", "normload"},
               {"schema_version", kReportVersion},
               {"started_at", report.started_at},
               {"options", OptionsJson(report.options)},
               {"environment", EnvironmentJson(report.server)},
               {"result", ResultJson(report)},
               {"intervals", IntervalsJson(report.intervals)}};
  if (report.error.ok()) {
    json["error"] = nullptr;
  } else {
    json["error"] = {{"code", absl::StatusCodeToString(report.error.code())},
                     {"message", std::string(report.error.message())}};
  }
  // One line for each part: the histograms' buckets are many. Servers' messages may hold anything,
  // so bytes that are no UTF-8 are replaced.
  std::string text;
  for (const auto& [key, value] : json.items()) {
    absl::StrAppend(&text, text.empty() ? "{\n" : ",\n", Json(key).dump(), ": ",
                    value.dump(-1, ' ', false, Json::error_handler_t::replace));
  }
  return text + "\n}\n";
}

}  // namespace normd::load
