#include "server/metrics/process_collector.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace normd {
namespace {

using prometheus::MetricFamily;
using prometheus::MetricType;

std::string ReadWhole(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return std::move(text).str();
}

// The fields after the process's name in <proc>/self/stat. The name stands in parentheses and may
// contain blanks and parentheses, so the last one closes it.
std::vector<std::string> FieldsAfterName(const std::string& stat) {
  const std::size_t end = stat.rfind(')');
  if (end == std::string::npos) return {};
  return absl::StrSplit(stat.substr(end + 1), absl::ByAnyChar(" \n"), absl::SkipEmpty());
}

// `number` counts as in proc(5): the first field after the name has 3.
std::optional<double> Field(const std::vector<std::string>& fields, std::size_t number) {
  double value = 0;
  if (number - 3 >= fields.size() || !absl::SimpleAtod(fields[number - 3], &value)) {
    return std::nullopt;
  }
  return value;
}

// Seconds since 1970 at which the machine started.
std::optional<double> BootTime(const std::string& proc) {
  const std::string stat = ReadWhole(absl::StrCat(proc, "/stat"));
  for (absl::string_view line : absl::StrSplit(stat, '\n')) {
    double seconds = 0;
    if (absl::ConsumePrefix(&line, "btime ") && absl::SimpleAtod(line, &seconds)) return seconds;
  }
  return std::nullopt;
}

std::optional<double> OpenFiles(const std::string& proc) {
  std::error_code error;
  std::filesystem::directory_iterator entry(absl::StrCat(proc, "/self/fd"), error);
  if (error) return std::nullopt;
  std::int64_t count = 0;
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) ++count;
  // The folder that is being read is itself open.
  return static_cast<double>(count - 1);
}

std::optional<double> MostFiles() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return std::nullopt;
  return static_cast<double>(limit.rlim_cur);
}

void Add(std::vector<MetricFamily>& out, const char* name, MetricType type, const char* help,
         std::optional<double> value) {
  if (!value.has_value()) return;
  prometheus::ClientMetric metric;
  (type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = *value;
  out.push_back({name, help, type, {metric}});
}

}  // namespace

std::vector<MetricFamily> ProcessCollector::Collect() const {
  const std::vector<std::string> fields =
      FieldsAfterName(ReadWhole(absl::StrCat(proc_, "/self/stat")));
  const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  const auto page_bytes = static_cast<double>(sysconf(_SC_PAGESIZE));

  std::optional<double> cpu_seconds = Field(fields, 14);   // In user mode,
  const std::optional<double> kernel = Field(fields, 15);  // and in the kernel.
  if (cpu_seconds && kernel) cpu_seconds = (*cpu_seconds + *kernel) / ticks;
  std::optional<double> start_seconds = Field(fields, 22);  // Since the machine's start.
  const std::optional<double> boot = BootTime(proc_);
  if (start_seconds && boot) start_seconds = *boot + *start_seconds / ticks;
  std::optional<double> resident_bytes = Field(fields, 24);  // In pages.
  if (resident_bytes) *resident_bytes *= page_bytes;

  std::vector<MetricFamily> out;
  Add(out, "process_cpu_seconds_total", MetricType::Counter,
      "Processor time that the process used, in user mode and in the kernel.",
      kernel ? cpu_seconds : std::nullopt);
  Add(out, "process_resident_memory_bytes", MetricType::Gauge,
      "Memory of the process that is in the machine's memory.", resident_bytes);
  Add(out, "process_start_time_seconds", MetricType::Gauge,
      "When the process started, in seconds since 1970.", boot ? start_seconds : std::nullopt);
  Add(out, "process_open_fds", MetricType::Gauge, "File descriptors that the process holds.",
      OpenFiles(proc_));
  Add(out, "process_max_fds", MetricType::Gauge, "File descriptors that it may hold.", MostFiles());
  return out;
}

}  // namespace normd
