
#include <chrono>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/normload/report.h"
#include "client/normload/units.h"

namespace normd::load {

namespace {

// Late by more than a hiccup, so that the response time is partly the client's.
bool ClientWasLate(const Measurement& measured) {
  constexpr Duration kHiccup = std::chrono::milliseconds(1);
  const Duration lag = measured.send_lag.Percentile(99);
  return lag > kHiccup && lag > measured.response_time.Percentile(99) / 4;
}

// The most responses later than the objective's limit with which it is still met.
std::int64_t LateAllowed(const Objective& objective, std::int64_t answers) {
  return static_cast<std::int64_t>((100 - objective.percent) / 100 * static_cast<double>(answers));
}

}  // namespace

std::vector<std::string> Notes(const Report& report) {
  const LoadResult& result = report.run().result;
  const Measurement& measured = result.measured;
  std::vector<std::string> notes;
  if (result.unsent > 0) {
    notes.push_back(absl::StrCat(result.unsent,
                                 " requests were still waiting to leave at the end (--max_inflight "
                                 "were unanswered): the server was further behind than the times "
                                 "say"));
  } else if (ClientWasLate(measured)) {
    notes.push_back(absl::StrFormat(
        "the client itself was late: the 99th percentile of its send lag is %.1f ms. Calls waited "
        "for a connection (--connections, --max_sending) or for its processors: give it a machine "
        "of its own, or start several",
        Milliseconds(measured.send_lag.Percentile(99))));
  }
  constexpr std::int64_t kEnoughLate = 10;
  const auto& objective = report.options.objective;
  if (objective && measured.ok() > 0 && LateAllowed(*objective, measured.ok()) < kEnoughLate) {
    notes.push_back(absl::StrFormat(
        "of %d responses, the slowest %d decide whether p%g is within the objective: run for "
        "longer "
        "to be sure",
        measured.ok(), LateAllowed(*objective, measured.ok()) + 1, objective->percent));
  }
  constexpr std::int64_t kForP999 = 1000;
  if (measured.ok() > 0 && measured.ok() < kForP999) {
    notes.push_back(absl::StrCat("of ", measured.ok(),
                                 " responses, p99.9 is the longest: run for longer for the tail"));
  }
  return notes;
}

namespace {

std::string Percentiles(const char* name, const Histogram& histogram) {
  const auto at = [&](double percent) { return Milliseconds(histogram.Percentile(percent)); };
  return absl::StrFormat("  %-14s %10.3f %10.3f %10.3f %10.3f %10.3f %10.3f\n", name, at(50),
                         at(90), at(99), at(99.9), Milliseconds(histogram.max()),
                         Milliseconds(histogram.mean()));
}

std::string Errors(const Measurement& measured) {
  std::string text;
  for (std::size_t code = 1; code < kStatusCodes; ++code) {
    if (measured.codes[code] == 0) continue;
    absl::StrAppendFormat(&text, "  %-14s %d, the first: %s\n", CodeName(code),
                          measured.codes[code], measured.first_message[code]);
  }
  return text;
}

std::string ServerStages(const Measurement& measured) {
  std::string text = "  server, means ";
  for (std::size_t i = 0; i < kServerStages; ++i) {
    absl::StrAppendFormat(&text, "%s%s %.3f ms", i == 0 ? " " : ", ", kServerStageNames[i],
                          Milliseconds(measured.MeanStage(i)));
  }
  text += "\n";
  if (measured.batches == 0) return text;  // Streams tell of no batch.
  absl::StrAppendFormat(&text, "  batches        %.2f requests on average, %d at most\n",
                        measured.MeanBatchRequests(), measured.max_batch_requests);
  return text;
}

// The measurements of each entry of the mix.
std::string Entries(const LoadResult& result, const ProgramOptions& options) {
  const std::vector<ItemMeasurement>& items = result.measured.items;
  std::string text;
  for (std::size_t i = 0; i < items.size() && i < options.mix.size(); ++i) {
    const auto rate = [&](std::int64_t bytes) {
      return PerSecond(1e-6 * static_cast<double>(bytes), result.elapsed);
    };
    absl::StrAppendFormat(&text, "  %s: %d ok, %d errors, %.1f MB/s out, %.1f MB/s back\n",
                          options.mix[i].ToString(), items[i].response_time.count(),
                          items[i].errors, rate(items[i].sent_bytes),
                          rate(items[i].received_bytes));
    text += Percentiles("response time", items[i].response_time);
    if (options.mix[i].streamed()) text += Percentiles("first bytes", items[i].first_bytes);
  }
  return text;
}

std::string Times(const LoadResult& result, const ProgramOptions& options) {
  const Measurement& measured = result.measured;
  std::string text = absl::StrFormat("  %-14s %10s %10s %10s %10s %10s %10s\n", "ms", "p50", "p90",
                                     "p99", "p99.9", "max", "mean");
  text += Percentiles("response time", measured.response_time);
  // In a closed loop the intended send is the actual one.
  if (options.open_loop()) {
    text += Percentiles("service time", measured.service_time);
    text += Percentiles("send lag", measured.send_lag);
  }
  if (options.tells_of_entries()) text += Entries(result, options);
  // The other protocol's responses do not report stages.
  if (options.protocol == client::Protocol::kNormd) text += ServerStages(measured);
  return text;
}

std::string ObjectiveText(const LoadResult& result, const ProgramOptions& options) {
  const ObjectiveResult judged = Judge(*options.objective, result, options.max_error_share);
  return absl::StrFormat("  objective      %s: %s; %.3f %% within it, goodput %.0f/s\n",
                         options.objective->ToString(), judged.met ? "met" : "missed",
                         100 * judged.WithinShare(result), judged.Goodput(result));
}

std::string RunText(const LoadResult& result, const ProgramOptions& options) {
  const Measurement& measured = result.measured;
  const Duration elapsed = result.elapsed;
  std::string text =
      absl::StrFormat("  measured       %.2f s, %d requests of warm-up before; %s\n",
                      Seconds(elapsed), measured.warmup_requests, Name(result.reason));
  absl::StrAppendFormat(&text, "  requests       %d, %.0f/s; %d errors (%.3g %%)\n",
                        measured.requests(),
                        PerSecond(static_cast<double>(measured.requests()), elapsed),
                        measured.errors(), 100 * measured.error_share());
  if (measured.cancelled > 0) {
    absl::StrAppendFormat(&text, "  cancelled      %d, as asked\n", measured.cancelled);
  }
  if (result.unsent > 0) {
    absl::StrAppendFormat(&text, "  unsent         %d, still waiting to leave at the end\n",
                          result.unsent);
  }
  absl::StrAppendFormat(&text, "  tensors        %.1f MB/s out, %.1f MB/s back\n",
                        PerSecond(1e-6 * static_cast<double>(measured.sent_bytes), elapsed),
                        PerSecond(1e-6 * static_cast<double>(measured.received_bytes), elapsed));
  text += Errors(measured);
  if (options.objective) text += ObjectiveText(result, options);
  if (measured.ok() > 0) text += Times(result, options);
  if (options.verify) {
    absl::StrAppendFormat(&text, "  verified       %d responses, %d wrong%s%s\n", measured.verified,
                          measured.wrong, measured.wrong > 0 ? ", the first: " : "",
                          measured.first_wrong);
  }
  return text;
}

// The tensors' transport, if it is not the usual one.
const char* PlaneText(Plane plane) {
  switch (plane) {
    case Plane::kUnixSocket: return ", over a unix socket";
    case Plane::kShared: return ", in shared memory";
    case Plane::kDevice: return ", in memory of a device";
    default: return "";
  }
}

// The effects of balancing, and each server's number of calls.
std::string FleetText(const client::FleetCounts& fleet) {
  std::string text = absl::StrFormat(
      "  balanced       %d calls in %d attempts: %d retries, %d hedges, %d taken from silent "
      "servers, %d over budget\n",
      fleet.calls, fleet.attempts, fleet.retries, fleet.hedges, fleet.abandoned, fleet.over_budget);
  for (const client::ServerCounts& server : fleet.servers) {
    absl::StrAppendFormat(&text, "    %-22s %d attempts, %d failed; %s\n", server.target,
                          server.calls, server.failed, client::Name(server.state));
  }
  return text;
}

// One line for each run of a sweep or a search.
std::string RunsTable(const Report& report) {
  std::string text = absl::StrFormat("  %-14s %10s %10s %10s %10s %10s %9s\n",
                                     report.options.open_loop() ? "rate" : "concurrency", "ok/s",
                                     "p50 ms", "p99 ms", "p99.9 ms", "max ms", "errors");
  for (const RunReport& run : report.runs) {
    const Interval whole = WholeRun(run.result);
    std::string note;
    if (report.options.objective) {
      note = Judge(*report.options.objective, run.result, report.options.max_error_share).met
                 ? "  met"
                 : "  missed";
    }
    absl::StrAppendFormat(&text, "  %-14.6g %10.0f %10.3f %10.3f %10.3f %10.3f %9d%s\n", run.load,
                          whole.rate(), Milliseconds(whole.p50), Milliseconds(whole.p99),
                          Milliseconds(whole.p999), Milliseconds(whole.max), whole.errors, note);
  }
  return text;
}

}  // namespace

const RunReport& Report::run() const {
  static const RunReport* const none = new RunReport();
  return runs.empty() ? *none : runs[chosen];
}

std::string DescribeLoad(const ProgramOptions& options) {
  if (options.find_max) return absl::StrCat("search for the highest rate with ", options.slo);
  if (options.sweep) return absl::StrCat("sweep, ", options.sweep_text);
  if (!options.arrivals_file.empty()) {
    return absl::StrCat("open loop, the arrivals of ", options.arrivals_file);
  }
  if (!options.profile_text.empty()) {
    return absl::StrFormat("open loop, %s arrivals at %s", options.arrival, options.profile_text);
  }
  if (options.open_loop()) {
    return absl::StrFormat("open loop, %s arrivals at %g/s", options.arrival, options.rate);
  }
  return absl::StrFormat("closed loop, %d callers", options.concurrency);
}

std::string TextReport(const Report& report) {
  const ProgramOptions& options = report.options;
  const std::string mix = absl::StrJoin(options.mix, ",", [](std::string* out, const MixEntry& e) {
    absl::StrAppend(out, e.ToString());
    if (e.weight != 1) absl::StrAppend(out, ":", e.weight);
  });
  std::string text = absl::StrFormat("%s: %s, %d connections\n", options.server,
                                     DescribeLoad(options), options.connections);
  if (report.processes > 1) {
    absl::StrAppendFormat(&text, "  processes      %d, together\n", report.processes);
  }
  absl::StrAppendFormat(&text, "  sent           %s%s\n", mix, PlaneText(options.plane));
  if (report.several() && !report.runs.empty()) {
    text += RunsTable(report);
    absl::StrAppendFormat(
        &text, "at %g%s\n", report.run().load,
        options.find_max && report.error.ok() ? ", the highest rate that met the objective" : "");
  }
  if (report.runs.empty()) return text + "  nothing was measured\n";
  text += RunText(report.run().result, options);
  if (report.run().fleet) text += FleetText(*report.run().fleet);
  for (const std::string& note : Notes(report)) absl::StrAppend(&text, "  note: ", note, "\n");
  return text;
}

namespace {

void AppendRow(const char* row, double load, const Interval& i, std::string* text) {
  absl::StrAppendFormat(text, "%s,%g,%.3f,%.3f,%d,%d,%.1f,%.3f,%.3f,%.3f,%.3f,%.3f,%.3f\n", row,
                        load, Seconds(i.begin), Seconds(i.end), i.ok, i.errors, i.rate(),
                        Microseconds(i.mean), Microseconds(i.p50), Microseconds(i.p90),
                        Microseconds(i.p99), Microseconds(i.p999), Microseconds(i.max));
}

}  // namespace

std::string CsvReport(const Report& report) {
  std::string text =
      "row,load,begin_s,end_s,ok,errors,ok_per_s,mean_us,p50_us,p90_us,p99_us,p99_9_us,max_us\n";
  for (const RunReport& run : report.runs) {
    for (const Interval& interval : run.intervals) {
      AppendRow("interval", run.load, interval, &text);
    }
    AppendRow("run", run.load, WholeRun(run.result), &text);
  }
  return text;
}

}  // namespace normd::load
