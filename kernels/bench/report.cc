#include "kernels/bench/report.h"

#include <algorithm>

#include "kernels/bench/text.h"

namespace normd::norm::bench {
std::string TableHeader() {
  return Format("%-24s %-9s %-6s %-18s %-16s %10s %10s %9s %6s %9s %9s", "operation", "dtype",
                "layout", "shape", "strategy", "ms", "copy ms", "GB/s", "ratio", "max error",
                "replay ms");
}

std::string TableLine(const Result& result) {
  const Case& c = result.measured;
  const Measurement& m = result.measurement;
  const std::string head = Format("%-24s %-9s %-6s %-18s ", c.op.c_str(), norm::Name(c.spec.dtype),
                                  Name(c.spec.layout), c.shape().c_str());
  if (!result.status.ok()) return head + result.status.message();
  const std::string error =
      m.checked_elements > 0 ? Format("%9.2e", m.max_error) : Format("%9s", "-");
  return head +
         Format("%-16s %10.5f %10.5f %9.2f %6.3f ", m.strategy.c_str(), m.norm_ms, m.copy_ms,
                m.gigabytes_per_second(c), m.ratio) +
         error + (m.replay_ms > 0 ? Format(" %9.5f", m.replay_ms) : "");
}

std::string Json(const std::string& device, const std::vector<Result>& results) {
  std::string out = "{\"device\": " + Quoted(device) + ",\n \"results\": [";
  for (const Result& result : results) {
    const Case& c = result.measured;
    const Measurement& m = result.measurement;
    out += &result == results.data() ? "\n  " : ",\n  ";
    out += "{\"op\": " + Quoted(c.op) + ", \"dtype\": " + Quoted(norm::Name(c.spec.dtype)) +
           ", \"layout\": " + Quoted(Name(c.spec.layout)) + ", \"shape\": " + Quoted(c.shape());
    if (!result.status.ok()) {
      out += ", \"error\": " + Quoted(result.status.message()) + "}";
      continue;
    }
    out += ", \"strategy\": " + Quoted(m.strategy) + ", \"norm_ms\": " + Number(m.norm_ms) +
           ", \"copy_ms\": " + Number(m.copy_ms) +
           ", \"gb_per_s\": " + Number(m.gigabytes_per_second(c)) +
           (m.replay_ms > 0 ? ", \"replay_ms\": " + Number(m.replay_ms) : "") +
           ", \"ratio_to_copy\": " + Number(m.ratio) + ", \"max_error\": " + Number(m.max_error) +
           ", \"checked_elements\": " + std::to_string(m.checked_elements) +
           ", \"repetitions\": " + std::to_string(m.repetitions) + "}";
  }
  return out + "\n]}\n";
}

double Median(std::vector<double>* values) {
  const auto middle = values->begin() + static_cast<std::ptrdiff_t>(values->size() / 2);
  std::nth_element(values->begin(), middle, values->end());
  return *middle;
}

}  // namespace normd::norm::bench
