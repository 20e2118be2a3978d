#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/normload/report.h"

namespace normd::load {
namespace {

// The first option in which two reports differ but have to agree; empty: none.
std::string Difference(const ProgramOptions& a, const ProgramOptions& b) {
  const auto mix = [](const ProgramOptions& o) {
    std::string text;
    for (const MixEntry& entry : o.mix) absl::StrAppend(&text, entry.ToString(), ":", entry.weight);
    return text;
  };
  if (a.open_loop() != b.open_loop()) return "mode";
  if (a.protocol != b.protocol) return "protocol";
  if (a.plane != b.plane) return "plane";
  if (mix(a) != mix(b)) return "mix";
  if (a.slo != b.slo) return "slo";
  if (a.profile_text.empty() != b.profile_text.empty()) return "profile";
  if (a.arrivals_file.empty() != b.arrivals_file.empty()) return "arrivals_file";
  return "";
}

void AddInterval(const Interval& other, Interval& interval) {
  const std::int64_t all = interval.ok + other.ok;
  if (all > 0) interval.mean = (interval.mean * interval.ok + other.mean * other.ok) / all;
  interval.begin = std::min(interval.begin, other.begin);
  interval.end = std::max(interval.end, other.end);
  interval.ok = all;
  interval.errors += other.errors;
  interval.p50 = std::max(interval.p50, other.p50);
  interval.p90 = std::max(interval.p90, other.p90);
  interval.p99 = std::max(interval.p99, other.p99);
  interval.p999 = std::max(interval.p999, other.p999);
  interval.max = std::max(interval.max, other.max);
}

void AddRun(const RunReport& other, RunReport& run) {
  run.load += other.load;
  run.result.measured.Merge(other.result.measured);
  run.result.elapsed = std::max(run.result.elapsed, other.result.elapsed);
  run.result.unsent += other.result.unsent;
  for (std::size_t i = 0; i < other.intervals.size(); ++i) {
    if (i < run.intervals.size()) {
      AddInterval(other.intervals[i], run.intervals[i]);
    } else {
      run.intervals.push_back(other.intervals[i]);
    }
  }
}

}  // namespace

absl::StatusOr<Report> MergeReports(std::vector<Report> reports) {
  if (reports.empty()) return absl::InvalidArgumentError("merge: no reports");
  Report merged = std::move(reports.front());
  for (std::size_t i = 1; i < reports.size(); ++i) {
    const Report& other = reports[i];
    if (merged.several() || other.several()) {
      return absl::InvalidArgumentError(
          "merge: a sweep or a search stands alone, wanted reports of single runs");
    }
    const std::string difference = Difference(merged.options, other.options);
    if (!difference.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("merge: the reports differ in ", difference));
    }
    merged.processes += other.processes;
    merged.options.concurrency += other.options.concurrency;
    merged.options.rate += other.options.rate;
    merged.options.connections += other.options.connections;
    merged.started_at = std::min(merged.started_at, other.started_at);
    merged.error.Update(other.error);
    AddRun(other.run(), merged.runs.front());
  }
  return merged;
}

}  // namespace normd::load
