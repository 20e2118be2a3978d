// The report of a run, a sweep or a search: as text for people, as JSON for programs (REPORT.md),
// as CSV for spreadsheets, as a page for browsers.

#ifndef NORMD_CLIENT_NORMLOAD_REPORT_H_
#define NORMD_CLIENT_NORMLOAD_REPORT_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/load/load_run.h"
#include "client/normload/options.h"
#include "client/normload/progress.h"
#include "client/normload/server_metrics.h"
#include "normd/v1/norm_service.pb.h"

namespace normd::load {

// The version of the JSON report. It changes when a field changes its meaning or is removed; fields
// may be added.
inline constexpr int kReportVersion = 1;

// One run of the load.
struct RunReport {
  // Requests per second of an open loop, callers of a closed one; 0 if the load changes within the
  // run (a profile, a trace).
  double load = 0;
  LoadResult result;
  std::vector<Interval> intervals;
  std::optional<ServerMetrics> server_metrics;  // With --metrics.
  // With balanced servers: the counts of all connections, including the warm-up.
  std::optional<client::FleetCounts> fleet = std::nullopt;
};

struct Report {
  ProgramOptions options;
  std::string started_at;  // RFC 3339, UTC.
  std::string client_host;
  unsigned client_cpus = 0;
  std::string client_cpu;  // The processor's model, as the system names it; may be empty.
  std::string command;     // In a shell's syntax.
  int processes = 1;       // More when reports were merged.
  v1::GetServerInfoResponse server;
  // In running order; a sweep or a search has several. Empty when none began.
  std::vector<RunReport> runs;
  // The run that stands for all: the last of a sweep; in a search the last at the rate found.
  std::size_t chosen = 0;
  absl::Status error;  // Why the run failed, or ended early.

  bool several() const { return options.sweep.has_value() || options.find_max; }
  // An empty one if none began.
  const RunReport& run() const;
};

// "open loop, poisson arrivals at 1000/s".
std::string DescribeLoad(const ProgramOptions& options);

// What a reader should know before trusting the chosen run's numbers: sentences without a full
// stop.
std::vector<std::string> Notes(const Report& report);

std::string TextReport(const Report& report);
std::string JsonReport(const Report& report);
// A header, then a row for each interval and each run (REPORT.md).
std::string CsvReport(const Report& report);
// One self-contained page for a browser.
std::string HtmlReport(const Report& report);

// Reads a report of JsonReport. InvalidArgument, with the place, for anything else, and for a newer
// schema.
absl::StatusOr<Report> ParseJsonReport(absl::string_view text);

// One report of several processes that ran at the same time with the same options: adds histograms
// and counts, rates, callers and connections. An interval's percentiles cannot be added: the
// largest is kept, which is an upper bound. InvalidArgument names the option in which they differ;
// sweeps and searches are not merged. At least one report.
absl::StatusOr<Report> MergeReports(std::vector<Report> reports);

}  // namespace normd::load

#endif  // NORMD_CLIENT_NORMLOAD_REPORT_H_
