#include <chrono>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/normload/report.h"
#include "client/normload/report_json.h"
#include "client/normload/units.h"
#include "nlohmann/json.hpp"

namespace normd::load {
namespace {

using Json = nlohmann::ordered_json;

Json DimsJson(const Shape& shape) {
  return std::vector<std::int64_t>(shape.dims().begin(), shape.dims().end());
}

Json MixJson(const std::vector<MixEntry>& mix) {
  Json json = Json::array();
  for (const MixEntry& entry : mix) {
    Json one = {{"entry", entry.ToString()},
                {"model", entry.model},
                {"shape", DimsJson(entry.inputs.front().shape)},
                {"dtype", norm::Name(entry.dtype)},
                {"weight", entry.weight}};
    for (std::size_t i = 1; i < entry.inputs.size(); ++i) {
      one["inputs"][entry.inputs[i].name] = DimsJson(entry.inputs[i].shape);
    }
    if (entry.priority != Priority::kUnspecified) {
      one["priority"] = static_cast<int>(entry.priority);
    }
    if (entry.timeout) one["timeout_s"] = Seconds(*entry.timeout);
    if (entry.queue_timeout > Duration{0}) one["queue_timeout_s"] = Seconds(entry.queue_timeout);
    if (!entry.outputs.empty()) one["outputs"] = entry.outputs;
    if (entry.streamed()) one["stream_chunk_bytes"] = entry.stream_chunk_bytes;
    json.push_back(std::move(one));
  }
  return json;
}

Json OptionsJson(const ProgramOptions& o) {
  Json json = {{"server", o.server},
               {"protocol", o.protocol_text},
               {"plane", Name(o.plane)},
               {"load", DescribeLoad(o)},
               {"mode", o.open_loop() ? "open" : "closed"},
               {"connections", o.connections},
               {"max_sending", o.max_sending},
               {"mix", MixJson(o.mix)},
               {"version", o.version},
               {"seed", o.seed},
               {"warmup_s", absl::ToDoubleSeconds(o.warmup)},
               {"verify_every", o.verify ? o.verify_every : 0},
               {"max_error_share", o.max_error_share}};
  if (o.timeout != absl::InfiniteDuration()) json["timeout_s"] = absl::ToDoubleSeconds(o.timeout);
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
          {"client_cpu", report.client_cpu},
          {"command", report.command},
          {"server_version", server.version()},
          {"server_lanes", std::vector<std::string>(server.lanes().begin(), server.lanes().end())},
          {"server_simd", server.simd()},
          {"server_cuda", server.cuda()}};
}

// The form of a histogram beside its percentiles: everything needed to rebuild it, the curve of a
// page, or nothing.
enum class Form { kBuckets, kCurve, kBrief };

Json BucketsJson(const Histogram& histogram) {
  Json buckets = Json::array();
  for (const Histogram::Bucket& bucket : histogram.Buckets()) {
    buckets.push_back({bucket.index, bucket.count});
  }
  return buckets;
}

// Steps of a twentieth of a power of ten in the share of values above, up to the last single value.
Json CurveJson(const Histogram& histogram) {
  Json curve = Json::array();
  for (int i = 0;; ++i) {
    const double beyond = std::pow(10, -i / 20.0);
    if (beyond * static_cast<double>(histogram.count()) < 1 - 1e-9) break;
    // More digits would only make it longer.
    const double percent = std::round(1e8 * (1 - beyond)) / 1e6;
    curve.push_back({percent, Microseconds(histogram.Percentile(percent))});
  }
  return curve;
}

Json HistogramJson(const Histogram& histogram, Form form) {
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
  if (form == Form::kBuckets) json["buckets"] = BucketsJson(histogram);
  if (form == Form::kCurve) json["curve"] = CurveJson(histogram);
  return json;
}

// By the entries of the mix.
Json ItemsJson(const Measurement& m, const ProgramOptions& options, Form form) {
  Json json = Json::array();
  for (std::size_t i = 0; i < m.items.size() && i < options.mix.size(); ++i) {
    const ItemMeasurement& item = m.items[i];
    Json one = {{"entry", options.mix[i].ToString()},
                {"errors", item.errors},
                {"sent_bytes", item.sent_bytes},
                {"received_bytes", item.received_bytes},
                {"response_time", HistogramJson(item.response_time, form)}};
    if (options.mix[i].streamed()) one["first_bytes"] = HistogramJson(item.first_bytes, form);
    json.push_back(std::move(one));
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

// The growth of one of the server's histograms.
Json GrowthJson(const client::HistogramGrowth& growth) {
  Json below = Json::array();
  for (const auto& [bound, count] : growth.below) {
    if (std::isfinite(bound)) below.push_back({bound, count});
  }
  return {{"count", growth.count},
          {"sum_s", growth.sum_s},
          {"mean_us", 1e6 * growth.mean_s()},
          {"p99_us", 1e6 * growth.Quantile(0.99)},
          {"below_s", below}};
}

Json ServerMetricsJson(const ServerMetrics& metrics) {
  Json models = Json::array();
  for (const client::ServerGrowth::Model& model : metrics.growth.models) {
    Json stages = Json::object();
    for (const auto& [name, growth] : model.stages) stages[name] = GrowthJson(growth);
    models.push_back({{"model", model.model},
                      {"request", GrowthJson(model.request)},
                      {"stream", GrowthJson(model.stream)},
                      {"stages", stages}});
  }
  Json lanes = Json::array();
  for (const auto& [lane, busy_s] : metrics.growth.lane_busy_s) {
    const double share = metrics.elapsed_s > 0 ? busy_s / metrics.elapsed_s : 0;
    lanes.push_back({{"lane", lane}, {"busy_s", busy_s}, {"busy_share", share}});
  }
  return {{"elapsed_s", metrics.elapsed_s},
          {"models", models},
          {"lanes", lanes},
          {"cpu_s", metrics.growth.cpu_s}};
}

Json FleetJson(const client::FleetCounts& fleet) {
  Json servers = Json::array();
  for (const client::ServerCounts& server : fleet.servers) {
    servers.push_back({{"target", server.target},
                       {"state", client::Name(server.state)},
                       {"attempts", server.calls},
                       {"failed", server.failed}});
  }
  return {
      {"calls", fleet.calls},   {"attempts", fleet.attempts},   {"retries", fleet.retries},
      {"hedges", fleet.hedges}, {"abandoned", fleet.abandoned}, {"over_budget", fleet.over_budget},
      {"servers", servers}};
}

Json ResultJson(const RunReport& run, const ProgramOptions& options, Form form) {
  const LoadResult& result = run.result;
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
  Json json = {
      {"stopped_by", Name(result.reason)},
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
      {"ok_per_s", PerSecond(static_cast<double>(m.ok()), result.elapsed)},
      {"sent_bytes", m.sent_bytes},
      {"received_bytes", m.received_bytes},
      {"response_time", HistogramJson(m.response_time, form)},
      {"service_time", HistogramJson(m.service_time, form)},
      {"send_lag", HistogramJson(m.send_lag, form)},
      {"server_stage_means_us", stages},
      {"batch_requests",
       {{"answers", m.in_batches}, {"mean", m.MeanBatchRequests()}, {"max", m.max_batch_requests}}},
      {"verified", m.verified},
      {"wrong", m.wrong}};
  if (options.objective) json["objective"] = ObjectiveJson(result, options);
  if (options.tells_of_entries()) json["by_entry"] = ItemsJson(m, options, form);
  if (run.fleet) json["fleet"] = FleetJson(*run.fleet);
  if (run.server_metrics) json["server_metrics"] = ServerMetricsJson(*run.server_metrics);
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

Json RunJson(const RunReport& run, const ProgramOptions& options, Form form) {
  return {{"load", run.load},
          {"result", ResultJson(run, options, form)},
          {"intervals", IntervalsJson(run.intervals)}};
}

Json ReportJson(const Report& report, Form form, Form form_of_points) {
  Json json = {{"schema", "normload"},
               {"schema_version", kReportVersion},
               {"started_at", report.started_at},
               {"processes", report.processes},
               {"options", OptionsJson(report.options)},
               {"environment", EnvironmentJson(report)},
               {"load", report.run().load},
               {"result", ResultJson(report.run(), report.options, form)},
               {"intervals", IntervalsJson(report.run().intervals)},
               {"notes", Notes(report)}};
  if (report.several()) {
    json["chosen"] = report.chosen;
    Json points = Json::array();
    for (const RunReport& run : report.runs) {
      points.push_back(RunJson(run, report.options, form_of_points));
    }
    json["points"] = std::move(points);
  }
  if (report.error.ok()) {
    json["error"] = nullptr;
  } else {
    json["error"] = {{"code", absl::StatusCodeToString(report.error.code())},
                     {"message", std::string(report.error.message())}};
  }
  return json;
}

// Servers' messages may contain anything, so bytes that are not UTF-8 are replaced.
std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

std::string JsonReport(const Report& report) {
  // One line for each part, because the histograms have many buckets.
  const Json json = ReportJson(report, Form::kBuckets, Form::kBuckets);
  std::string text;
  for (const auto& [key, value] : json.items()) {
    absl::StrAppend(&text, text.empty() ? "{\n" : ",\n", Json(key).dump(), ": ", Dump(value));
  }
  return text + "\n}\n";
}

std::string JsonForPage(const Report& report) {
  // Nobody looks at more runs one by one.
  constexpr std::size_t kShown = 50;
  return Dump(
      ReportJson(report, Form::kCurve, report.runs.size() <= kShown ? Form::kCurve : Form::kBrief));
}

}  // namespace normd::load
