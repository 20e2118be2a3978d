
#include "absl/strings/str_format.h"
#include "client/normload/report.h"
#include "client/normload/units.h"

namespace normd::load {
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
