#include "client/normload/normload.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "base/file.h"
#include "client/channel_security.h"
#include "client/normload/options.h"
#include "client/normload/report.h"
#include "flags/version.h"

namespace normd::load {
namespace {

absl::Status WriteFile(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text << std::flush;
  if (!file) return absl::UnavailableError(absl::StrCat(path, ": cannot write the report"));
  return absl::OkStatus();
}

// Checked before a run, so that an hour's report is not lost at its end.
absl::Status CheckWritable(const ReportFiles& files) {
  for (const std::string& path : {files.json, files.csv, files.html}) {
    if (path.empty() || std::ofstream(path, std::ios::binary | std::ios::app)) continue;
    return absl::InvalidArgumentError(absl::StrCat(path, ": cannot write there"));
  }
  return absl::OkStatus();
}

// Checked before a run too: no server is to blame for them.
absl::Status CheckSecurityFiles(const client::ConnectionFlags& flags) {
  client::ClientOptions options;
  flags.Set(options);
  absl::Status status = client::MakeChannelCredentials(options.tls).status();
  if (status.ok() && !options.token_file.empty()) {
    status = client::ReadToken(options.token_file).status();
  }
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("--", status.message()));
}

// Prints and writes the report, however the run ended; returns the exit code.
int Tell(const Report& report, const ReportFiles& files, std::ostream& out, std::ostream& err) {
  out << TextReport(report);
  int code = kExitOk;
  const auto tell = [&](const absl::Status& status, int exit_code) {
    if (status.ok()) return;
    code = exit_code;
    err << "normload: " << absl::StatusCodeToString(status.code()) << ": " << status.message()
        << "\n";
  };
  tell(report.error, kExitFailed);
  if (!files.json.empty()) tell(WriteFile(files.json, JsonReport(report)), kExitUsage);
  if (!files.csv.empty()) tell(WriteFile(files.csv, CsvReport(report)), kExitUsage);
  if (!files.html.empty()) tell(WriteFile(files.html, HtmlReport(report)), kExitUsage);
  return code;
}

// "normload", then the arguments, quoted where a shell needs it.
std::string CommandLine(absl::Span<const std::string> arguments) {
  std::string line = "normload";
  for (const std::string& argument : arguments) {
    const bool plain =
        !argument.empty() && std::all_of(argument.begin(), argument.end(), [](char c) {
          return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
                 absl::StrContains("-_=+.,:/@%", c);
        });
    if (plain) {
      absl::StrAppend(&line, " ", argument);
    } else {
      absl::StrAppend(&line, " '", absl::StrReplaceAll(argument, {{"'", "'\\''"}}), "'");
    }
  }
  return line;
}

// The model of this machine's first processor; empty if the system does not say.
std::string CpuModel() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!absl::StartsWith(line, "model name")) continue;
    const std::size_t colon = line.find(':');
    if (colon != std::string::npos)
      return std::string(absl::StripAsciiWhitespace(line.substr(colon + 1)));
  }
  return "";
}

int Usage(const absl::Status& status, std::ostream& err) {
  err << "normload: " << status.message() << "\nTry: normload --help\n";
  return kExitUsage;
}

int Load(absl::Span<const std::string> arguments, const Attention& attention, std::ostream& out,
         std::ostream& err) {
  absl::StatusOr<ProgramOptions> options = ParseOptions(arguments);
  if (!options.ok()) return Usage(options.status(), err);
  if (options->help) {
    out << HelpText();
    return kExitOk;
  }
  if (absl::Status status = CheckWritable(options->files); !status.ok()) return Usage(status, err);
  if (absl::Status status = CheckSecurityFiles(options->connection); !status.ok()) {
    return Usage(status, err);
  }
  Report report;
  report.options = *std::move(options);
  report.started_at = absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::Now(), absl::UTCTimeZone());
  char host[256] = {};
  ::gethostname(host, sizeof(host) - 1);
  report.client_host = host;
  report.client_cpus = std::thread::hardware_concurrency();
  report.client_cpu = CpuModel();
  report.command = CommandLine(arguments);

  Attention attended = attention;
  if (report.options.quiet) attended.progress = nullptr;
  auto session = Session::Open(report.options);
  if (session.ok()) {
    report.server = (*session)->server();
    report.options = (*session)->options();
    report.error = (*session)->Run(attended, report);
  } else {
    report.error = session.status();
  }
  return Tell(report, report.options.files, out, err);
}

absl::StatusOr<Report> ReadReport(const std::string& path) {
  const std::optional<std::string> text = ReadWhole(path);
  if (!text) return absl::NotFoundError(absl::StrCat(path, ": cannot read it"));
  absl::StatusOr<Report> report = ParseJsonReport(*text);
  if (report.ok()) return report;
  return absl::Status(report.status().code(), absl::StrCat(path, ": ", report.status().message()));
}

int Merge(absl::Span<const std::string> arguments, std::ostream& out, std::ostream& err) {
  const absl::StatusOr<MergeOptions> options = ParseMergeOptions(arguments);
  if (!options.ok()) return Usage(options.status(), err);
  std::vector<Report> reports;
  for (const std::string& path : options->reports) {
    absl::StatusOr<Report> report = ReadReport(path);
    if (!report.ok()) return Usage(report.status(), err);
    reports.push_back(*std::move(report));
  }
  const absl::StatusOr<Report> merged = MergeReports(std::move(reports));
  if (!merged.ok()) return Usage(merged.status(), err);
  return Tell(*merged, options->files, out, err);
}

int Run(absl::Span<const std::string> arguments, Interrupts& interrupts, std::ostream& out,
        std::ostream& err, bool terminal) {
  if (!arguments.empty() && arguments.front() == "merge") {
    return Merge(arguments.subspan(1), out, err);
  }
  if (arguments.size() == 1 && arguments.front() == "help") {
    out << HelpText();
    return kExitOk;
  }
  if (arguments.size() == 1 && arguments.front() == "--version") {
    out << VersionText("normload") << "\n";
    return kExitOk;
  }
  return Load(arguments, {&interrupts, &err, terminal}, out, err);
}

}  // namespace

int RunNormload(absl::Span<const std::string> arguments, Interrupts& interrupts, std::ostream& out,
                std::ostream& err, bool terminal) {
  const int code = Run(arguments, interrupts, out, err, terminal);
  if (out.flush()) return code;
  err << "normload: stdout: cannot be written\n";
  return kExitUsage;
}

}  // namespace normd::load
