#include <chrono>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/normload/report.h"

namespace normd::load {
namespace {

double Seconds(Duration d) { return std::chrono::duration<double>(d).count(); }
double Milliseconds(Duration d) { return std::chrono::duration<double, std::milli>(d).count(); }

double PerSecond(double amount, Duration elapsed) {
  return elapsed > Duration{0} ? amount / Seconds(elapsed) : 0;
}

std::string Mode(const ProgramOptions& options) {
  if (options.open_loop()) {
    return absl::StrFormat("open loop, %s arrivals at %g/s", options.arrival, options.rate);
  }
  return absl::StrFormat("closed loop, %d callers", options.concurrency);
}

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
  absl::StrAppendFormat(&text, "\n  batches        %.2f requests on average, %d at most\n",
                        measured.MeanBatchRequests(), measured.max_batch_requests);
  return text;
}

}  // namespace

std::string TextReport(const Report& report) {
  const ProgramOptions& options = report.options;
  const Measurement& measured = report.result.measured;
  const Duration elapsed = report.result.elapsed;
  const std::string mix = absl::StrJoin(options.mix, ",", [](std::string* out, const MixEntry& e) {
    absl::StrAppend(out, e.ToString());
    if (e.weight != 1) absl::StrAppend(out, ":", e.weight);
  });
  std::string text = absl::StrFormat("%s: %s, %d connections\n  sent           %s\n",
                                     options.server, Mode(options), options.connections, mix);
  absl::StrAppendFormat(&text, "  measured       %.2f s, %d requests of warm-up before; %s\n",
                        Seconds(elapsed), measured.warmup_requests, Name(report.result.reason));
  absl::StrAppendFormat(&text, "  requests       %d, %.0f/s; %d errors (%.3g %%)\n",
                        measured.requests(),
                        PerSecond(static_cast<double>(measured.requests()), elapsed),
                        measured.errors(), 100 * measured.error_share());
  if (report.result.unsent > 0) {
    absl::StrAppendFormat(&text, "  unsent         %d, still waiting to leave at the end\n",
                          report.result.unsent);
  }
  absl::StrAppendFormat(&text, "  tensors        %.1f MB/s out, %.1f MB/s back\n",
                        PerSecond(1e-6 * static_cast<double>(measured.sent_bytes), elapsed),
                        PerSecond(1e-6 * static_cast<double>(measured.received_bytes), elapsed));
  text += Errors(measured);
  if (measured.ok() > 0) {
    absl::StrAppendFormat(&text, "  %-14s %10s %10s %10s %10s %10s %10s\n", "ms", "p50", "p90",
                          "p99", "p99.9", "max", "mean");
    text += Percentiles("response time", measured.response_time);
    // In a closed loop a request is meant to leave when it leaves.
    if (options.open_loop()) {
      text += Percentiles("service time", measured.service_time);
      text += Percentiles("send lag", measured.send_lag);
    }
    text += ServerStages(measured);
  }
  if (options.verify) {
    absl::StrAppendFormat(&text, "  verified       %d answers, %d wrong%s%s\n", measured.verified,
                          measured.wrong, measured.wrong > 0 ? ", the first: " : "",
                          measured.first_wrong);
  }
  return text;
}

}  // namespace normd::load
