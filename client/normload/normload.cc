#include "client/normload/normload.h"

#include <atomic>
#include <chrono>
#include <fstream>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "client/load/load_run.h"
#include "client/normload/grpc_sender.h"
#include "client/normload/options.h"
#include "client/normload/preflight.h"
#include "client/normload/progress.h"
#include "client/normload/report.h"

namespace normd::load {
namespace {

absl::StatusOr<std::vector<std::unique_ptr<client::Client>>> Connect(
    const ProgramOptions& options) {
  client::ClientOptions connection;
  connection.own_connection = true;
  std::vector<std::unique_ptr<client::Client>> clients;
  for (int i = 0; i < options.connections; ++i) {
    auto client = client::Client::Create(options.server, connection);
    if (!client.ok()) return client.status();
    clients.push_back(*std::move(client));
  }
  return clients;
}

LoadOptions RunOptions(const ProgramOptions& options) {
  LoadOptions run;
  if (options.open_loop()) {
    // ParseOptions has checked the rate and the kind.
    run.arrivals = *MakeArrivals(options.arrival, options.rate, options.seed);
  }
  run.concurrency = options.concurrency;
  run.max_inflight = options.max_inflight;
  run.stop.warmup = absl::ToChronoNanoseconds(options.warmup);
  if (options.duration != absl::InfiniteDuration()) {
    run.stop.duration = absl::ToChronoNanoseconds(options.duration);
  }
  run.stop.requests = options.requests;
  run.stop.unavailable_in_a_row = options.give_up_after;
  run.verify_every = options.verify ? options.verify_every : 0;
  run.seed = options.seed;
  return run;
}

// Runs to the end on a thread of its own while this one attends to the user.
LoadResult RunAttended(LoadRun& run, Interrupts& interrupts, Progress& progress) {
  constexpr Duration kTick = std::chrono::milliseconds(100);
  constexpr Duration kLook = std::chrono::seconds(1);
  std::atomic<bool> finished{false};
  std::thread runner([&] {
    AskForPreciseWakeups();
    run.Run();
    finished.store(true);
  });
  const SteadyClock clock{};
  TimePoint next_look = clock.Now() + kLook;
  while (!finished.load()) {
    if (interrupts.Wait(kTick)) run.Interrupt();
    if (clock.Now() >= next_look) {
      progress.Look(run.Snapshot());
      next_look += kLook;
    }
  }
  runner.join();
  LoadResult result = run.Snapshot();
  progress.Finish(result);
  return result;
}

// What makes a finished run a failure.
absl::Status Judge(const LoadResult& result, const ProgramOptions& options) {
  const Measurement& measured = result.measured;
  if (measured.wrong > 0) {
    return absl::DataLossError(absl::StrCat(measured.wrong, " of ", measured.verified,
                                            " verified answers are wrong: ", measured.first_wrong));
  }
  if (result.reason == StopReason::kServerGone) {
    const auto code = static_cast<std::size_t>(absl::StatusCode::kUnavailable);
    return absl::UnavailableError(
        absl::StrCat("the server has gone (", options.give_up_after,
                     " calls in a row failed): ", measured.first_message[code]));
  }
  if (measured.error_share() > options.max_error_share) {
    return absl::UnknownError(absl::StrCat(measured.errors(), " of ", measured.requests(),
                                           " requests failed, wanted at most a share of ",
                                           options.max_error_share));
  }
  return absl::OkStatus();
}

absl::Status WriteFile(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text << std::flush;
  if (!file) return absl::UnavailableError(absl::StrCat(path, ": cannot write the report"));
  return absl::OkStatus();
}

// Fills the report as far as the run comes.
absl::Status Measure(Report& report, Interrupts& interrupts, Progress& progress) {
  const ProgramOptions& options = report.options;
  absl::StatusOr<Workload> workload = Workload::Create(options.mix, options.seed);
  if (!workload.ok()) return workload.status();
  auto clients = Connect(options);
  if (!clients.ok()) return clients.status();
  absl::StatusOr<Preflight> preflight = RunPreflight(*clients->front(), *workload, options);
  if (!preflight.ok()) return preflight.status();
  report.server = std::move(preflight->server);

  SteadyPacer pacer;
  GrpcSenderOptions sender_options;
  sender_options.version = options.version;
  sender_options.timeout = absl::ToChronoNanoseconds(options.timeout);
  const auto sender = GrpcSender::Create(*std::move(clients), *workload,
                                         std::move(preflight->expectations), sender_options, pacer);
  if (!sender.ok()) return sender.status();
  LoadRun run(RunOptions(options), *workload, **sender, pacer);
  report.result = RunAttended(run, interrupts, progress);
  return Judge(report.result, options);
}

}  // namespace

int RunNormload(absl::Span<const std::string> arguments, Interrupts& interrupts, std::ostream& out,
                std::ostream& err, bool terminal) {
  absl::StatusOr<ProgramOptions> options = ParseOptions(arguments);
  if (!options.ok()) {
    err << "normload: " << options.status().message() << "\nTry: normload --help\n";
    return kExitUsage;
  }
  if (options->help) {
    out << HelpText();
    return kExitOk;
  }
  Report report;
  report.options = *std::move(options);
  report.started_at = absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::Now(), absl::UTCTimeZone());
  Progress progress(report.options.quiet ? nullptr : &err, terminal);
  report.error = Measure(report, interrupts, progress);
  report.intervals = progress.intervals();

  out << TextReport(report);
  absl::Status written;
  if (!report.options.json_path.empty()) {
    written = WriteFile(report.options.json_path, JsonReport(report));
  }
  for (const absl::Status& status : {report.error, written}) {
    if (status.ok()) continue;
    err << "normload: " << absl::StatusCodeToString(status.code()) << ": " << status.message()
        << "\n";
  }
  return report.error.ok() && written.ok() ? kExitOk : kExitFailed;
}

}  // namespace normd::load
