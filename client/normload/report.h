// The report of a run, as text for people and as JSON for programs (REPORT.md).

#ifndef NORMD_CLIENT_NORMLOAD_REPORT_H_
#define NORMD_CLIENT_NORMLOAD_REPORT_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/load/load_run.h"
#include "client/normload/options.h"
#include "client/normload/progress.h"
#include "normd/v1/norm_service.pb.h"

namespace normd::load {

// Of the JSON report. It changes when a field changes its meaning or goes; fields may be added.
inline constexpr int kReportVersion = 1;

struct Report {
  ProgramOptions options;
  std::string started_at;  // RFC 3339, UTC.
  v1::GetServerInfoResponse server;
  LoadResult result;
  std::vector<Interval> intervals;
  absl::Status error;  // Why the run failed, or ended before its time.
};

std::string TextReport(const Report& report);
std::string JsonReport(const Report& report);

}  // namespace normd::load

#endif  // NORMD_CLIENT_NORMLOAD_REPORT_H_
