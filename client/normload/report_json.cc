// The report as JSON, for programs and for the page.

#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/normload/json_place.h"
#include "client/normload/page_text.h"
#include "client/normload/report.h"
#include "client/normload/units.h"

namespace normd::load {

// Not in an unnamed namespace: the templates find an Exchange by the namespace of Place.

// The unit is the end of the field's name.
static void Exchange(const Place& at, Duration& value) {
  const bool exact = absl::EndsWith(at.name, "_ns");
  const double unit = absl::EndsWith(at.name, "_us") ? 1e3 : 1e9;
  if (!at.reads) {
    at.json = exact ? Json(value.count()) : Json(static_cast<double>(value.count()) / unit);
  } else if (exact) {
    value = Duration{Read<std::int64_t>(at)};
  } else {
    // Duration::max() means no time limit; a double cannot hold it.
    const double ns = unit * Read<double>(at);
    value = ns < 9e18 ? Duration{std::llround(ns)} : Duration::max();
  }
}

static void Exchange(const Place& at, absl::Duration& value) {
  double seconds = absl::ToDoubleSeconds(value);
  Exchange(at, seconds);
  if (at.reads) value = absl::Seconds(seconds);
}

static void Exchange(const Place& at, Shape& shape) {
  std::vector<std::int64_t> dims(shape.dims().begin(), shape.dims().end());
  Exchange(at, dims);
  if (at.reads) shape = ValueOr(Shape::Create(dims), at);
}

static void Exchange(const Place& at, norm::DType& dtype) {
  std::string name = norm::Name(dtype);
  Exchange(at, name);
  if (at.reads) dtype = ValueOr(client::ParseDType(name), at);
}

static void Exchange(const Place& at, Priority& priority) {
  int number = static_cast<int>(priority);
  Exchange(at, number);
  if (number < 0 || number > static_cast<int>(Priority::kHigh)) {
    throw BadValue{absl::StrCat(at.name, ": ", number)};
  }
  priority = static_cast<Priority>(number);
}

static void Exchange(const Place& at, Plane& plane) {
  std::string name = Name(plane);
  Exchange(at, name);
  plane = PlaneOf(name);
}

static void Exchange(const Place& at, StopReason& reason) {
  std::string name = Name(reason);
  Exchange(at, name);
  reason = StopReason::kNone;
  for (int i = 0; i <= static_cast<int>(StopReason::kObjectiveMissed); ++i) {
    if (name == Name(static_cast<StopReason>(i))) reason = static_cast<StopReason>(i);
  }
}

static void Exchange(const Place& at, absl::Status& status) {
  if (at.reads ? at.json.is_null() : status.ok()) return;
  std::string code = absl::StatusCodeToString(status.code());
  std::string message(status.message());
  at.Field("code", code);
  at.Field("message", message);
  if (!at.reads) return;
  for (std::size_t i = 1; i < kStatusCodes; ++i) {
    if (code == CodeName(i)) status = absl::Status(static_cast<absl::StatusCode>(i), message);
  }
  if (status.ok()) throw BadValue{absl::StrCat(at.name, ".code: ", code)};
}

// Those beside the first, in their order.
static void ExchangeInputs(const Place& at, MixEntry& entry) {
  for (std::size_t i = 1; i < entry.inputs.size(); ++i) {
    at.In("inputs").Field(entry.inputs[i].name, entry.inputs[i].shape);
  }
  if (!at.reads || !at.json.contains("inputs")) return;
  const Place inputs = at.In("inputs");
  for (const auto& [name, dims] : inputs.json.items()) {
    Shape shape;
    inputs.Field(name, shape);
    entry.SetInput(name, std::move(shape));
  }
}

static void Exchange(const Place& at, MixEntry& entry) {
  at.Derived("entry", entry.ToString());
  at.Field("model", entry.model);
  at.Field("shape", entry.inputs.front().shape);
  at.Field("dtype", entry.dtype);
  at.Field("weight", entry.weight);
  ExchangeInputs(at, entry);
  at.Optional("priority", entry.priority, entry.priority != Priority::kUnspecified);
  at.Optional("timeout_s", entry.timeout, entry.timeout.has_value());
  at.Optional("queue_timeout_s", entry.queue_timeout, entry.queue_timeout > Duration{0});
  at.Optional("outputs", entry.outputs, !entry.outputs.empty());
  at.Optional("stream_chunk_bytes", entry.stream_chunk_bytes, entry.streamed());
}

// What ParseOptions makes from the flags, as far as a report needs it.
static void Complete(const Place& at, ProgramOptions& o) {
  if (o.protocol_text != "normd") o.protocol = client::Protocol::kOpenInference;
  if (o.rate > 0) o.profile = RateProfile::Constant(o.rate);
  if (!o.profile_text.empty()) {
    o.profile = ValueOr(RateProfile::Parse(o.profile_text), at.In("profile"));
  }
  // The report only says that there was a trace.
  if (!o.arrivals_file.empty()) o.trace = {Duration{0}};
  if (!o.sweep_text.empty()) o.sweep = ValueOr(ParseSweep(o.sweep_text), at.In("sweep"));
  if (!o.slo.empty()) o.objective = ValueOr(ParseObjective(o.slo), at.In("slo"));
  if (o.find_max && !o.objective) throw BadValue{"options.slo: missing, wanted with find_max"};
}

// The values of the flags of the same names.
static void Exchange(const Place& at, ProgramOptions& o) {
  if (at.reads) o.timeout = o.duration = absl::InfiniteDuration();
  at.Field("server", o.server);
  at.Optional("protocol", o.protocol_text);
  at.Optional("plane", o.plane);
  at.Derived("load", DescribeLoad(o));
  at.Derived("mode", o.open_loop() ? "open" : "closed");
  at.Field("connections", o.connections);
  at.Optional("max_sending", o.max_sending);
  at.Field("mix", o.mix);
  at.Optional("version", o.version);
  at.Optional("seed", o.seed);
  at.Optional("warmup_s", o.warmup);
  std::int64_t verify_every = o.verify ? o.verify_every : 0;
  at.Optional("verify_every", verify_every);
  at.Optional("max_error_share", o.max_error_share);
  at.Optional("timeout_s", o.timeout, o.timeout != absl::InfiniteDuration());
  at.Optional("rate_per_s", o.rate, o.open_loop());
  at.Optional("arrival", o.arrival, o.open_loop());
  at.Optional("max_inflight", o.max_inflight, o.open_loop());
  at.Optional("concurrency", o.concurrency, !o.open_loop());
  at.Optional("profile", o.profile_text, !o.profile_text.empty());
  at.Optional("arrivals_file", o.arrivals_file, !o.arrivals_file.empty());
  at.Optional("sweep", o.sweep_text, !o.sweep_text.empty());
  at.Optional("find_max", o.find_max, o.find_max);
  at.Optional("slo", o.slo, !o.slo.empty());
  at.Optional("cancel_share", o.cancel_share, o.cancel_share > 0);
  at.Optional("cancel_after_s", o.cancel_after, o.cancel_share > 0);
  at.Optional("stable_p99", o.stable_p99, o.stable_p99 > 0);
  at.Optional("stable_window_s", o.stable_window, o.stable_p99 > 0);
  at.Optional("stop_error_share", o.stop_error_share, o.stop_error_share < 1);
  at.Optional("duration_s", o.duration, o.duration != absl::InfiniteDuration());
  at.Optional("requests", o.requests, o.requests > 0);
  if (!at.reads) return;
  o.verify_every = verify_every;
  o.verify = verify_every > 0;
  Complete(at, o);
}

static void ExchangeEnvironment(const Place& at, Report& report) {
  v1::GetServerInfoResponse& server = report.server;
  at.Field("client_host", report.client_host);
  at.Field("client_cpus", report.client_cpus);
  at.Optional("client_cpu", report.client_cpu);
  at.Optional("command", report.command);
  at.Field("server_version", *server.mutable_version());
  std::vector<std::string> lanes(server.lanes().begin(), server.lanes().end());
  at.Field("server_lanes", lanes);
  *server.mutable_lanes() = {lanes.begin(), lanes.end()};
  at.Field("server_simd", *server.mutable_simd());
  at.Field("server_cuda", *server.mutable_cuda());
}

// Steps of a twentieth of a power of ten in the share of values above, up to the last single value.
static Json CurveJson(const Histogram& histogram) {
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

static void Exchange(const Place& at, Histogram& histogram) {
  at.Derived("count", histogram.count());
  at.Derived("min_us", Microseconds(histogram.min()));
  at.Derived("mean_us", Microseconds(histogram.mean()));
  at.Derived("max_us", Microseconds(histogram.max()));
  const std::pair<const char*, double> percentiles[] = {
      {"p50_us", 50}, {"p90_us", 90}, {"p99_us", 99}, {"p99_9_us", 99.9}, {"p99_99_us", 99.99}};
  for (const auto& [name, percent] : percentiles) {
    at.Derived(name, Microseconds(histogram.Percentile(percent)));
  }
  Duration sum = histogram.sum();
  Duration min = histogram.min();
  Duration max = histogram.max();
  at.Field("sum_ns", sum);
  at.Field("min_ns", min);
  at.Field("max_ns", max);
  if (at.form == Form::kCurve) at.Derived("curve", CurveJson(histogram));
  if (at.form != Form::kBuckets) return;
  std::vector<std::pair<std::size_t, std::int64_t>> buckets;
  for (const Histogram::Bucket& bucket : histogram.Buckets()) {
    buckets.emplace_back(bucket.index, bucket.count);
  }
  at.Field("buckets", buckets);
  if (!at.reads) return;
  for (const auto& [index, count] : buckets) {
    if (histogram.Add(index, count)) continue;
    throw BadValue{absl::StrCat("buckets: [", index, ",", count, "], wanted an index and a count")};
  }
  if (histogram.count() > 0) histogram.SetExtremes(min, max, sum);
}

// By the entries of the mix.
static void ExchangeItems(const Place& at, const ProgramOptions& options, Measurement& m) {
  at.Resize(m.items);
  for (std::size_t i = 0; i < m.items.size() && i < options.mix.size(); ++i) {
    ItemMeasurement& item = m.items[i];
    const Place one = at.Element(i);
    one.Derived("entry", options.mix[i].ToString());
    one.Field("errors", item.errors);
    one.Optional("sent_bytes", item.sent_bytes);
    one.Optional("received_bytes", item.received_bytes);
    one.Field("response_time", item.response_time);
    one.Optional("first_bytes", item.first_bytes, options.mix[i].streamed());
  }
}

static Json ObjectiveJson(const LoadResult& result, const ProgramOptions& options) {
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
static void Exchange(const Place& at, client::HistogramGrowth& growth) {
  std::vector<std::pair<double, double>> below;
  for (const auto& [bound, count] : growth.below) {
    if (std::isfinite(bound)) below.emplace_back(bound, count);
  }
  at.Field("count", growth.count);
  at.Field("sum_s", growth.sum_s);
  at.Derived("mean_us", 1e6 * growth.mean_s());
  at.Derived("p99_us", 1e6 * growth.Quantile(0.99));
  at.Field("below_s", below);
  if (at.reads) growth.below = {below.begin(), below.end()};
}

static void Exchange(const Place& at, client::ServerGrowth::Model& model) {
  at.Field("model", model.model);
  at.Field("request", model.request);
  at.Optional("stream", model.stream);
  at.Field("stages", model.stages);
}

struct Lane {
  std::string name;
  double busy_s = 0;
  double busy_share = 0;
};

static void Exchange(const Place& at, Lane& lane) {
  at.Field("lane", lane.name);
  at.Field("busy_s", lane.busy_s);
  at.Derived("busy_share", lane.busy_share);
}

static void Exchange(const Place& at, ServerMetrics& metrics) {
  std::vector<Lane> lanes;
  for (const auto& [lane, busy_s] : metrics.growth.lane_busy_s) {
    lanes.push_back({lane, busy_s, metrics.elapsed_s > 0 ? busy_s / metrics.elapsed_s : 0});
  }
  at.Field("elapsed_s", metrics.elapsed_s);
  at.Field("models", metrics.growth.models);
  at.Field("lanes", lanes);
  at.Field("cpu_s", metrics.growth.cpu_s);
  for (const Lane& lane : lanes) metrics.growth.lane_busy_s[lane.name] = lane.busy_s;
}

static Json FleetJson(const client::FleetCounts& fleet) {
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

static void ExchangeCodes(const Place& at, Measurement& m) {
  if (!at.reads) {
    at.json["codes"] = Json::object();
    at.json["first_messages"] = Json::object();
  }
  for (std::size_t code = 0; code < kStatusCodes; ++code) {
    const bool written = m.codes[code] != 0;
    at.In("codes").Optional(CodeName(code), m.codes[code], written);
    at.In("first_messages").Optional(CodeName(code), m.first_message[code], written && code != 0);
  }
}

// What the server's responses say of its work.
static void ExchangeServerSide(const Place& at, Measurement& m) {
  for (std::size_t i = 0; i < kServerStages; ++i) {
    double mean_us = Microseconds(m.MeanStage(i));
    at.In("server_stage_means_us").Optional(kServerStageNames[i], mean_us);
    if (at.reads) m.stage_sum[i] = Duration{std::llround(1e3 * mean_us)} * m.ok();
  }
  const Place batch = at.In("batch_requests");
  double mean = m.MeanBatchRequests();
  if (at.reads) m.in_batches = m.ok();
  batch.Optional("answers", m.in_batches);
  batch.Field("mean", mean);
  batch.Field("max", m.max_batch_requests);
  if (at.reads) m.batches = mean > 0 ? static_cast<double>(m.in_batches) / mean : 0;
}

static void ExchangeResult(const Place& at, const ProgramOptions& options, RunReport& run) {
  LoadResult& result = run.result;
  Measurement& m = result.measured;
  at.Field("stopped_by", result.reason);
  at.Field("elapsed_s", result.elapsed);
  at.Derived("requests", m.requests());
  at.Derived("ok", m.ok());
  at.Derived("errors", m.errors());
  at.Derived("error_share", m.error_share());
  at.Optional("cancelled", m.cancelled);
  at.Field("unsent", result.unsent);
  at.Field("warmup_requests", m.warmup_requests);
  ExchangeCodes(at, m);
  at.Derived("ok_per_s", PerSecond(static_cast<double>(m.ok()), result.elapsed));
  at.Field("sent_bytes", m.sent_bytes);
  at.Field("received_bytes", m.received_bytes);
  at.Field("response_time", m.response_time);
  at.Field("service_time", m.service_time);
  at.Field("send_lag", m.send_lag);
  ExchangeServerSide(at, m);
  at.Field("verified", m.verified);
  at.Field("wrong", m.wrong);
  if (!at.reads && options.objective) at.Derived("objective", ObjectiveJson(result, options));
  if (at.reads ? at.json.contains("by_entry") : options.tells_of_entries()) {
    ExchangeItems(at.In("by_entry"), options, m);
  }
  // Merged reports have none.
  if (!at.reads && run.fleet) at.Derived("fleet", FleetJson(*run.fleet));
  at.Optional("server_metrics", run.server_metrics, run.server_metrics.has_value());
}

static void Exchange(const Place& at, Interval& interval) {
  at.Field("begin_s", interval.begin);
  at.Field("end_s", interval.end);
  at.Field("ok", interval.ok);
  at.Field("errors", interval.errors);
  at.Optional("mean_us", interval.mean);
  at.Optional("p50_us", interval.p50);
  at.Optional("p90_us", interval.p90);
  at.Optional("p99_us", interval.p99);
  at.Optional("p99_9_us", interval.p999);
  at.Optional("max_us", interval.max);
}

static void ExchangeRun(const Place& at, const ProgramOptions& options, RunReport& run) {
  at.Optional("load", run.load);
  ExchangeResult(at.In("result"), options, run);
  at.Field("intervals", run.intervals);
}

static void ExchangeRuns(const Place& at, Form form_of_points, Report& report) {
  const bool several = at.reads ? at.json.contains("points") : report.several();
  if (!at.reads || !several) {
    RunReport run = report.run();
    ExchangeRun(at, report.options, run);
    if (at.reads) report.runs = {std::move(run)};
  }
  if (!at.reads) at.Derived("notes", Notes(report));
  if (!several) return;
  at.Field("chosen", report.chosen);
  const Place points = at.In("points");
  points.Resize(report.runs);
  for (std::size_t i = 0; i < report.runs.size(); ++i) {
    const Place point{points.json[i], at.reads, form_of_points, points.name};
    ExchangeRun(point, report.options, report.runs[i]);
  }
  if (report.chosen >= report.runs.size()) report.chosen = 0;
}

static void ExchangeReport(const Place& at, Form form_of_points, Report& report) {
  std::string schema = at.reads ? "" : "normload";
  at.Optional("schema", schema);
  if (schema != "normload") throw BadValue{"schema: wanted \"normload\""};
  int version = kReportVersion;
  at.Field("schema_version", version);
  if (version > kReportVersion) {
    throw BadValue{
        absl::StrCat("schema_version: ", version, ", this program knows up to ", kReportVersion)};
  }
  at.Field("started_at", report.started_at);
  at.Optional("processes", report.processes);
  at.Field("options", report.options);
  ExchangeEnvironment(at.In("environment"), report);
  ExchangeRuns(at, form_of_points, report);
  at.Field("error", report.error);
}

static Json JsonOf(Report report, Form form, Form form_of_points) {
  Json json;
  ExchangeReport({json, /*reads=*/false, form, ""}, form_of_points, report);
  return json;
}

// Servers' messages may contain anything, so bytes that are not UTF-8 are replaced.
static std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string JsonReport(const Report& report) {
  // One line for each part, because the histograms have many buckets.
  const Json json = JsonOf(report, Form::kBuckets, Form::kBuckets);
  std::string text;
  for (const auto& [key, value] : json.items()) {
    absl::StrAppend(&text, text.empty() ? "{\n" : ",\n", Json(key).dump(), ": ", Dump(value));
  }
  return text + "\n}\n";
}

// Only page/page.js reads the data in the page, so its form may change. A histogram has a `curve`
// instead of its buckets: a list of [percentile, microseconds], evenly spread over the nines.
std::string HtmlReport(const Report& report) {
  // Nobody looks at more runs one by one.
  constexpr std::size_t kShown = 50;
  const Form form_of_points = report.runs.size() <= kShown ? Form::kCurve : Form::kBrief;
  // Servers' messages may contain anything: without '<' they cannot end the element around them.
  const std::string data =
      absl::StrReplaceAll(Dump(JsonOf(report, Form::kCurve, form_of_points)), {{"<", "\\u003c"}});
  return absl::StrReplaceAll(
      kPageHtml, {{"{{style}}", kPageCss}, {"{{script}}", kPageJs}, {"{{data}}", data}});
}

absl::StatusOr<Report> ParseJsonReport(absl::string_view text) {
  try {
    Json json = Json::parse(text.begin(), text.end());
    Report report;
    ExchangeReport({json, /*reads=*/true, Form::kBuckets, ""}, Form::kBuckets, report);
    return report;
  } catch (const Json::parse_error& e) {
    return absl::InvalidArgumentError(
        absl::StrCat("no report of normload: malformed JSON near byte ", e.byte));
  } catch (const Json::exception&) {
    return absl::InvalidArgumentError("no report of normload");
  } catch (const BadValue& e) {
    return absl::InvalidArgumentError(absl::StrCat("no report of normload: ", e.what));
  }
}

}  // namespace normd::load
