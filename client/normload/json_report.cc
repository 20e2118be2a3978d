#include <chrono>

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

Json MixJson(const std::vector<MixEntry>& mix) {
  Json json = Json::array();
  for (const MixEntry& entry : mix) {
    const auto dims = entry.shape.dims();
    Json one = {{"model", entry.model},
                {"shape", std::vector<std::int64_t>(dims.begin(), dims.end())},
                {"dtype", norm::Name(entry.dtype)},
                {"weight", entry.weight}};
    if (entry.timeout) one["timeout_s"] = Seconds(*entry.timeout);
    json.push_back(std::move(one));
  }
  return json;
}

Json OptionsJson(const ProgramOptions& o) {
  Json json = {{"server", o.server},
               {"load", DescribeLoad(o)},
               {"mode", o.open_loop() ? "open" : "closed"},
               {"connections", o.connections},
               {"mix", MixJson(o.mix)},
               {"version", o.version},
               {"seed", o.seed},
               {"timeout_s", absl::ToDoubleSeconds(o.timeout)},
               {"warmup_s", absl::ToDoubleSeconds(o.warmup)},
               {"verify_every", o.verify ? o.verify_every : 0},
               {"max_error_share", o.max_error_share}};
  if (o.open_loop()) {
    json["rate_per_s"] = o.rate;
    json["arrival"] = o.arrival;
    json["max_inflight"] = o.max_inflight;
  } else {
    json["concurrency"] = o.concurrency;
  }
  if (!o.profile_text.empty()) json["profile"] = o.profile_text;
  if (!o.arrivals_file.empty()) json["arrivals_file"] = o.arrivals_file;
  if (!o.sweep_text.empty()) json["sweep"] = o.sweep_text;
  if (o.find_max) json["find_max"] = true;
  if (!o.slo.empty()) json["slo"] = o.slo;
  if (o.cancel_share > 0) {
    json["cancel_share"] = o.cancel_share;
    json["cancel_after_s"] = absl::ToDoubleSeconds(o.cancel_after);
  }
  if (o.stable_p99 > 0) {
    json["stable_p99"] = o.stable_p99;
    json["stable_window_s"] = absl::ToDoubleSeconds(o.stable_window);
  }
  if (o.stop_error_share < 1) json["stop_error_share"] = o.stop_error_share;
  if (o.duration != absl::InfiniteDuration()) {
    json["duration_s"] = absl::ToDoubleSeconds(o.duration);
  }
  if (o.requests > 0) json["requests"] = o.requests;
  return json;
}

Json EnvironmentJson(const Report& report) {
  const v1::GetServerInfoResponse& server = report.server;
  return {{"client_host", report.client_host},
          {"client_cpus", report.client_cpus},
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

// By the entries of the mix.
Json ItemsJson(const Measurement& m, const ProgramOptions& options) {
  Json json = Json::array();
  for (std::size_t i = 0; i < m.items.size() && i < options.mix.size(); ++i) {
    json.push_back({{"entry", options.mix[i].ToString()},
                    {"errors", m.items[i].errors},
                    {"response_time", HistogramJson(m.items[i].response_time)}});
  }
  return json;
}

Json ObjectiveJson(const LoadResult& result, const ProgramOptions& options) {
  const Objective& objective = *options.objective;
  const ObjectiveResult judged = Judge(objective, result, options.max_error_share);
  return {{"percent", objective.percent},
          {"limit_us", Microseconds(objective.limit)},
          {"reached_us", Microseconds(judged.reached)},
          {"met", judged.met},
          {"within", judged.within},
          {"within_share", judged.WithinShare(result)},
          {"goodput_per_s", judged.Goodput(result)}};
}

Json ResultJson(const LoadResult& result, const ProgramOptions& options) {
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
  Json json = {{"stopped_by", Name(result.reason)},
               {"elapsed_s", Seconds(result.elapsed)},
               {"requests", m.requests()},
               {"ok", m.ok()},
               {"errors", m.errors()},
               {"error_share", m.error_share()},
               {"cancelled", m.cancelled},
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
  if (options.objective) json["objective"] = ObjectiveJson(result, options);
  if (options.mix.size() > 1) json["by_entry"] = ItemsJson(m, options);
  return json;
}

Json IntervalsJson(const std::vector<Interval>& intervals) {
  Json json = Json::array();
  for (const Interval& interval : intervals) {
    json.push_back({{"begin_s", Seconds(interval.begin)},
                    {"end_s", Seconds(interval.end)},
                    {"ok", interval.ok},
                    {"errors", interval.errors},
                    {"mean_us", Microseconds(interval.mean)},
                    {"p50_us", Microseconds(interval.p50)},
                    {"p90_us", Microseconds(interval.p90)},
                    {"p99_us", Microseconds(interval.p99)},
                    {"p99_9_us", Microseconds(interval.p999)},
                    {"max_us", Microseconds(interval.max)}});
  }
  return json;
}

Json RunJson(const RunReport& run, const ProgramOptions& options) {
  return {{"load", run.load},
          {"result", ResultJson(run.result, options)},
          {"intervals", IntervalsJson(run.intervals)}};
}

}  // namespace

std::string JsonReport(const Report& report) {
  Json json = {{"schema", "normload"},
               {"schema_version", kReportVersion},
               {"started_at", report.started_at},
               {"processes", report.processes},
               {"options", OptionsJson(report.options)},
               {"environment", EnvironmentJson(report)},
               {"load", report.run().load},
               {"result", ResultJson(report.run().result, report.options)},
               {"intervals", IntervalsJson(report.run().intervals)}};
  if (report.several()) {
    json["chosen"] = report.chosen;
    Json points = Json::array();
    for (const RunReport& run : report.runs) points.push_back(RunJson(run, report.options));
    json["points"] = std::move(points);
  }
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
