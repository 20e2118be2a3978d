#include <chrono>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/normload/report.h"
#include "nlohmann/json.hpp"

namespace normd::load {
namespace {

using Json = nlohmann::ordered_json;

// Duration::max() means no time limit; a double cannot hold it.
Duration FromSeconds(double seconds) {
  constexpr double kMost = 9e9;
  return seconds < kMost ? Duration{std::llround(1e9 * seconds)} : Duration::max();
}
Duration FromMicroseconds(double us) { return Duration{std::llround(1e3 * us)}; }

// The readers throw nlohmann's exceptions for a missing field or a wrong type, and this one for an
// impossible value.
struct BadValue {
  std::string what;
};

template <typename T>
T ValueOr(absl::StatusOr<T> value, const char* field) {
  if (value.ok()) return *std::move(value);
  throw BadValue{absl::StrCat(field, ": ", value.status().message())};
}

Shape ReadShape(const Json& json, const char* field) {
  return ValueOr(Shape::Create(json.get<std::vector<std::int64_t>>()), field);
}

MixEntry ReadMixEntry(const Json& json) {
  MixEntry entry;
  entry.model = json.at("model").get<std::string>();
  entry.inputs.front().shape = ReadShape(json.at("shape"), "options.mix");
  entry.dtype =
      ValueOr(client::ParseDType(json.at("dtype").get<std::string>()), "options.mix.dtype");
  entry.weight = json.at("weight").get<double>();
  const int priority = json.value("priority", 0);
  if (priority < 0 || priority > static_cast<int>(Priority::kHigh)) {
    throw BadValue{absl::StrCat("options.mix.priority: ", priority)};
  }
  entry.priority = static_cast<Priority>(priority);
  entry.queue_timeout = FromSeconds(json.value("queue_timeout_s", 0.0));
  if (json.contains("inputs")) {
    for (const auto& [name, shape] : json.at("inputs").items()) {
      entry.SetInput(name, ReadShape(shape, "options.mix.inputs"));
    }
  }
  entry.outputs = json.value("outputs", std::vector<std::string>());
  entry.stream_chunk_bytes = json.value("stream_chunk_bytes", std::int64_t{0});
  if (json.contains("timeout_s")) entry.timeout = FromSeconds(json.at("timeout_s").get<double>());
  return entry;
}

// The values that the flags of the same names would have set.
ProgramOptions ReadOptions(const Json& json) {
  const auto duration = [&](const char* field, absl::Duration otherwise) {
    return json.contains(field) ? absl::Seconds(json.at(field).get<double>()) : otherwise;
  };
  ProgramOptions o;
  o.server = json.at("server").get<std::string>();
  o.protocol_text = json.value("protocol", o.protocol_text);
  if (o.protocol_text != "normd") o.protocol = client::Protocol::kOpenInference;
  o.plane = PlaneOf(json.value("plane", ""));
  o.connections = json.at("connections").get<int>();
  o.max_sending = json.value("max_sending", o.max_sending);
  for (const Json& entry : json.at("mix")) o.mix.push_back(ReadMixEntry(entry));
  o.version = json.value("version", o.version);
  o.seed = json.value("seed", o.seed);
  o.timeout = duration("timeout_s", absl::InfiniteDuration());
  o.warmup = duration("warmup_s", o.warmup);
  o.duration = duration("duration_s", absl::InfiniteDuration());
  o.requests = json.value("requests", o.requests);
  o.verify_every = json.value("verify_every", std::int64_t{0});
  o.verify = o.verify_every > 0;
  o.max_error_share = json.value("max_error_share", o.max_error_share);
  o.concurrency = json.value("concurrency", o.concurrency);
  o.rate = json.value("rate_per_s", 0.0);
  o.arrival = json.value("arrival", o.arrival);
  o.max_inflight = json.value("max_inflight", o.max_inflight);
  o.profile_text = json.value("profile", "");
  o.arrivals_file = json.value("arrivals_file", "");
  o.sweep_text = json.value("sweep", "");
  o.find_max = json.value("find_max", false);
  o.slo = json.value("slo", "");
  o.cancel_share = json.value("cancel_share", o.cancel_share);
  o.cancel_after = duration("cancel_after_s", o.cancel_after);
  o.stable_p99 = json.value("stable_p99", o.stable_p99);
  o.stable_window = duration("stable_window_s", o.stable_window);
  o.stop_error_share = json.value("stop_error_share", o.stop_error_share);

  if (o.rate > 0) o.profile = RateProfile::Constant(o.rate);
  if (!o.profile_text.empty()) {
    o.profile = ValueOr(RateProfile::Parse(o.profile_text), "options.profile");
  }
  // The report only says that there was a trace.
  if (!o.arrivals_file.empty()) o.trace = {Duration{0}};
  if (!o.sweep_text.empty()) o.sweep = ValueOr(ParseSweep(o.sweep_text), "options.sweep");
  if (!o.slo.empty()) o.objective = ValueOr(ParseObjective(o.slo), "options.slo");
  if (o.find_max && !o.objective) throw BadValue{"options.slo: missing, wanted with find_max"};
  return o;
}

Histogram ReadHistogram(const Json& json) {
  Histogram histogram;
  for (const Json& bucket : json.at("buckets")) {
    if (!histogram.Add(bucket.at(0).get<std::size_t>(), bucket.at(1).get<std::int64_t>())) {
      throw BadValue{absl::StrCat("buckets: ", bucket.dump(), ", wanted an index and a count")};
    }
  }
  if (histogram.count() == 0) return Histogram();
  histogram.SetExtremes(Duration{json.at("min_ns").get<std::int64_t>()},
                        Duration{json.at("max_ns").get<std::int64_t>()},
                        Duration{json.at("sum_ns").get<std::int64_t>()});
  return histogram;
}

StopReason ReadReason(const std::string& name) {
  for (int i = 0; i <= static_cast<int>(StopReason::kObjectiveMissed); ++i) {
    if (name == Name(static_cast<StopReason>(i))) return static_cast<StopReason>(i);
  }
  return StopReason::kNone;
}

void ReadCodes(const Json& json, Measurement& m) {
  const Json& codes = json.at("codes");
  const Json& messages = json.at("first_messages");
  for (std::size_t code = 0; code < kStatusCodes; ++code) {
    m.codes[code] = codes.value(CodeName(code), std::int64_t{0});
    m.first_message[code] = messages.value(CodeName(code), "");
  }
}

LoadResult ReadResult(const Json& json) {
  LoadResult result;
  Measurement& m = result.measured;
  result.reason = ReadReason(json.at("stopped_by").get<std::string>());
  result.elapsed = FromSeconds(json.at("elapsed_s").get<double>());
  result.unsent = json.at("unsent").get<std::int64_t>();
  ReadCodes(json, m);
  m.warmup_requests = json.at("warmup_requests").get<std::int64_t>();
  m.cancelled = json.value("cancelled", std::int64_t{0});
  m.sent_bytes = json.at("sent_bytes").get<std::int64_t>();
  m.received_bytes = json.at("received_bytes").get<std::int64_t>();
  m.response_time = ReadHistogram(json.at("response_time"));
  m.service_time = ReadHistogram(json.at("service_time"));
  m.send_lag = ReadHistogram(json.at("send_lag"));
  const Json& stages = json.at("server_stage_means_us");
  for (std::size_t i = 0; i < kServerStages; ++i) {
    m.stage_sum[i] = FromMicroseconds(stages.value(kServerStageNames[i], 0.0)) * m.ok();
  }
  const double mean = json.at("batch_requests").at("mean").get<double>();
  m.in_batches = json.at("batch_requests").value("answers", m.ok());
  m.batches = mean > 0 ? static_cast<double>(m.in_batches) / mean : 0;
  m.max_batch_requests = json.at("batch_requests").at("max").get<std::int64_t>();
  m.verified = json.at("verified").get<std::int64_t>();
  m.wrong = json.at("wrong").get<std::int64_t>();
  if (json.contains("by_entry")) {
    for (const Json& entry : json.at("by_entry")) {
      ItemMeasurement item;
      item.response_time = ReadHistogram(entry.at("response_time"));
      if (entry.contains("first_bytes")) item.first_bytes = ReadHistogram(entry.at("first_bytes"));
      item.errors = entry.at("errors").get<std::int64_t>();
      item.sent_bytes = entry.value("sent_bytes", std::int64_t{0});
      item.received_bytes = entry.value("received_bytes", std::int64_t{0});
      m.items.push_back(std::move(item));
    }
  }
  return result;
}

client::HistogramGrowth ReadGrowth(const Json& json) {
  client::HistogramGrowth growth;
  growth.count = json.at("count").get<double>();
  growth.sum_s = json.at("sum_s").get<double>();
  for (const Json& bound : json.at("below_s")) {
    growth.below[bound.at(0).get<double>()] = bound.at(1).get<double>();
  }
  return growth;
}

std::optional<ServerMetrics> ReadServerMetrics(const Json& result) {
  if (!result.contains("server_metrics")) return std::nullopt;
  const Json& json = result.at("server_metrics");
  ServerMetrics metrics;
  metrics.elapsed_s = json.at("elapsed_s").get<double>();
  metrics.growth.cpu_s = json.at("cpu_s").get<double>();
  for (const Json& one : json.at("models")) {
    client::ServerGrowth::Model model;
    model.model = one.at("model").get<std::string>();
    model.request = ReadGrowth(one.at("request"));
    if (one.contains("stream")) model.stream = ReadGrowth(one.at("stream"));
    for (const auto& [name, growth] : one.at("stages").items()) {
      model.stages[name] = ReadGrowth(growth);
    }
    metrics.growth.models.push_back(std::move(model));
  }
  for (const Json& lane : json.at("lanes")) {
    metrics.growth.lane_busy_s[lane.at("lane").get<std::string>()] =
        lane.at("busy_s").get<double>();
  }
  return metrics;
}

std::vector<Interval> ReadIntervals(const Json& json) {
  std::vector<Interval> intervals;
  for (const Json& one : json) {
    const auto us = [&](const char* field) { return FromMicroseconds(one.value(field, 0.0)); };
    Interval i;
    i.begin = FromSeconds(one.at("begin_s").get<double>());
    i.end = FromSeconds(one.at("end_s").get<double>());
    i.ok = one.at("ok").get<std::int64_t>();
    i.errors = one.at("errors").get<std::int64_t>();
    i.mean = us("mean_us");
    i.p50 = us("p50_us");
    i.p90 = us("p90_us");
    i.p99 = us("p99_us");
    i.p999 = us("p99_9_us");
    i.max = us("max_us");
    intervals.push_back(i);
  }
  return intervals;
}

RunReport ReadRun(double load, const Json& json) {
  const Json& result = json.at("result");
  return {load, ReadResult(result), ReadIntervals(json.at("intervals")), ReadServerMetrics(result)};
}

absl::Status ReadError(const Json& json) {
  if (json.is_null()) return absl::OkStatus();
  const std::string code = json.at("code").get<std::string>();
  for (std::size_t i = 1; i < kStatusCodes; ++i) {
    if (code == CodeName(i)) {
      return absl::Status(static_cast<absl::StatusCode>(i), json.at("message").get<std::string>());
    }
  }
  throw BadValue{absl::StrCat("error.code: ", code)};
}

Report ReadReport(const Json& json) {
  if (json.value("schema", "") != "normload") throw BadValue{"schema: wanted \"normload\""};
  if (json.at("schema_version").get<int>() > kReportVersion) {
    throw BadValue{absl::StrCat("schema_version: ", json.at("schema_version").dump(),
                                ", this program knows up to ", kReportVersion)};
  }
  Report report;
  report.options = ReadOptions(json.at("options"));
  report.started_at = json.at("started_at").get<std::string>();
  report.processes = json.value("processes", 1);
  const Json& environment = json.at("environment");
  report.client_host = environment.at("client_host").get<std::string>();
  report.client_cpus = environment.at("client_cpus").get<unsigned>();
  report.client_cpu = environment.value("client_cpu", "");
  report.command = environment.value("command", "");
  report.server.set_version(environment.at("server_version").get<std::string>());
  report.server.set_simd(environment.at("server_simd").get<std::string>());
  report.server.set_cuda(environment.at("server_cuda").get<std::string>());
  for (const Json& lane : environment.at("server_lanes")) {
    report.server.add_lanes(lane.get<std::string>());
  }
  report.error = ReadError(json.at("error"));
  if (json.contains("points")) {
    report.chosen = json.at("chosen").get<std::size_t>();
    for (const Json& point : json.at("points")) {
      report.runs.push_back(ReadRun(point.at("load").get<double>(), point));
    }
  } else {
    report.runs.push_back(ReadRun(json.value("load", 0.0), json));
  }
  if (report.chosen >= report.runs.size()) report.chosen = 0;
  return report;
}

}  // namespace

absl::StatusOr<Report> ParseJsonReport(absl::string_view text) {
  try {
    return ReadReport(Json::parse(text.begin(), text.end()));
  } catch (const Json::exception& e) {
    return absl::InvalidArgumentError(absl::StrCat("no report of normload: ", e.what()));
  } catch (const BadValue& e) {
    return absl::InvalidArgumentError(absl::StrCat("no report of normload: ", e.what));
  }
}

}  // namespace normd::load
