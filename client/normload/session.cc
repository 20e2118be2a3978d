#include "client/normload/session.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/channel_security.h"
#include "client/client.h"
#include "client/load/early_stop.h"
#include "client/load/load_run.h"
#include "client/load/rate_search.h"
#include "client/normload/grpc_sender.h"
#include "client/normload/http_sender.h"
#include "client/normload/preflight.h"
#include "client/normload/progress.h"
#include "client/normload/units.h"

namespace normd::load {
namespace {

// The clients of a session.
struct Connected {
  std::vector<std::unique_ptr<client::Caller>> callers;
  std::vector<const client::FleetClient*> fleets;  // The callers, if they are fleets.
  std::shared_ptr<client::Client> control;  // For the calls before the load; shared with a fleet.
  std::size_t servers = 1;
};

client::ClientOptions ConnectionOf(const ProgramOptions& options) {
  client::ClientOptions connection;
  connection.own_connection = true;
  connection.retries = false;
  options.connection.Set(connection);
  return connection;
}

absl::StatusOr<Connected> ConnectToFleet(const ProgramOptions& options) {
  client::FleetOptions fleet = *options.fleet;
  fleet.client = ConnectionOf(options);
  Connected connected;
  for (int i = 0; i < options.connections; ++i) {
    auto client = client::FleetClient::Create(options.server, fleet);
    if (!client.ok()) return client.status();
    connected.fleets.push_back(client->get());
    connected.callers.push_back(*std::move(client));
  }
  const Duration timeout = absl::ToChronoNanoseconds(options.timeout);
  for (const auto& caller : connected.callers) {
    if (!static_cast<client::FleetClient&>(*caller).Connect(timeout)) break;
  }
  auto& first = static_cast<client::FleetClient&>(*connected.callers.front());
  connected.control = first.AnyServer();
  connected.servers = first.counts().servers.size();
  return connected;
}

absl::StatusOr<Connected> Connect(const ProgramOptions& options) {
  if (options.fleet) return ConnectToFleet(options);
  const client::ClientOptions connection = ConnectionOf(options);
  std::vector<std::unique_ptr<client::Client>> clients;
  const int connections = options.over_http() ? 1 : options.connections;
  for (int i = 0; i < connections; ++i) {
    auto client = client::Client::Create(options.server, connection);
    if (!client.ok()) return client.status();
    clients.push_back(*std::move(client));
  }
  // Whatever keeps the first from its server keeps the others from theirs; the first call says why.
  const Duration timeout = absl::ToChronoNanoseconds(options.timeout);
  for (const auto& client : clients) {
    if (!client->Connect(timeout)) break;
  }
  Connected connected;
  connected.control = {std::shared_ptr<void>(), clients.front().get()};
  for (auto& client : clients) connected.callers.push_back(std::move(client));
  return connected;
}

// Adds `factor` times the counts. Clients know the same servers in the same order, except while
// their names change.
void Add(const client::FleetCounts& more, std::int64_t factor, client::FleetCounts& sum) {
  for (std::int64_t client::FleetCounts::*count :
       {&client::FleetCounts::calls, &client::FleetCounts::attempts, &client::FleetCounts::retries,
        &client::FleetCounts::hedges, &client::FleetCounts::abandoned,
        &client::FleetCounts::over_budget}) {
    sum.*count += factor * more.*count;
  }
  for (const client::ServerCounts& server : more.servers) {
    auto known = std::find_if(sum.servers.begin(), sum.servers.end(),
                              [&](const auto& s) { return s.target == server.target; });
    if (known == sum.servers.end()) {
      // A server that is gone has nothing to be subtracted from.
      if (factor > 0) sum.servers.push_back(server);
      continue;
    }
    known->calls += factor * server.calls;
    known->failed += factor * server.failed;
    if (factor > 0) known->state = std::max(known->state, server.state);
  }
}

// The counts of all clients together.
client::FleetCounts Sum(const std::vector<const client::FleetClient*>& fleets) {
  client::FleetCounts sum;
  for (const client::FleetClient* fleet : fleets) Add(fleet->counts(), 1, sum);
  return sum;
}

// A run with these options, at `load` if it is above 0.
LoadOptions RunOptions(const ProgramOptions& options, double load, std::uint64_t seed) {
  LoadOptions run;
  const Duration warmup = absl::ToChronoNanoseconds(options.warmup);
  run.concurrency = options.concurrency;
  std::optional<RateProfile> profile = options.profile;
  if (load > 0 && options.open_loop()) profile = RateProfile::Constant(load);
  if (load > 0 && !options.open_loop()) run.concurrency = static_cast<int>(load);
  if (!options.trace.empty()) {
    run.arrivals = TracedArrivals(options.trace);
  } else if (options.open_loop()) {
    // ParseOptions has checked the kind, and that there is a profile or a load.
    run.arrivals = *MakeArrivals(options.arrival, profile->WithLead(warmup), seed);
  }
  run.max_inflight = options.max_inflight;
  run.stop.warmup = warmup;
  if (options.duration != absl::InfiniteDuration()) {
    run.stop.duration = absl::ToChronoNanoseconds(options.duration);
  }
  run.stop.requests = options.requests;
  run.stop.unavailable_in_a_row = options.give_up_after;
  run.verify_every = options.verify ? options.verify_every : 0;
  run.cancel_share = options.cancel_share;
  run.cancel_after = absl::ToChronoNanoseconds(options.cancel_after);
  run.seed = seed;
  return run;
}

// For `load` in a search: ends a run that can no longer meet the objective.
EarlyStopOptions EarlyOptions(const ProgramOptions& options, double load) {
  EarlyStopOptions early;
  early.stable_band = options.stable_p99;
  early.window = absl::ToChronoNanoseconds(options.stable_window);
  early.error_share = options.stop_error_share;
  if (options.find_max) {
    const double planned = options.requests > 0 ? static_cast<double>(options.requests)
                                                : load * absl::ToDoubleSeconds(options.duration);
    // A little slack for the variance of Poisson arrivals.
    early.most_late = std::llround(1.1 * planned * (1 - options.objective->percent / 100)) + 1;
    early.limit = options.objective->limit;
  }
  return early;
}

// The errors that make a finished run a failure, whatever else is asked of it.
absl::Status JudgeResponses(const LoadResult& result, const ProgramOptions& options) {
  const Measurement& measured = result.measured;
  if (measured.wrong > 0) {
    return absl::DataLossError(
        absl::StrCat(measured.wrong, " of ", measured.verified,
                     " verified responses are wrong: ", measured.first_wrong));
  }
  if (result.reason == StopReason::kServerGone) {
    const auto code = static_cast<std::size_t>(absl::StatusCode::kUnavailable);
    return absl::UnavailableError(
        absl::StrCat("the server has gone (", options.give_up_after,
                     " calls in a row failed): ", measured.first_message[code]));
  }
  return absl::OkStatus();
}

absl::Status JudgeObjective(const LoadResult& result, const ProgramOptions& options) {
  if (!options.require_slo) return absl::OkStatus();
  const ObjectiveResult judged = Judge(*options.objective, result, options.max_error_share);
  if (judged.met) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrCat(
      "the objective ", options.objective->ToString(), " was missed: it took ",
      absl::FormatDuration(absl::FromChrono(judged.reached)),
      result.unsent > 0 ? absl::StrCat(", and ", result.unsent, " requests were not sent") : ""));
}

// Judges the whole of a run's responses.
absl::Status JudgeRun(const LoadResult& result, const ProgramOptions& options) {
  const Measurement& measured = result.measured;
  if (measured.error_share() <= options.max_error_share) return JudgeObjective(result, options);
  return absl::OutOfRangeError(absl::StrFormat(
      "%d of %d requests failed (%.3g %%), wanted at most %.3g %% (--max_error_share)",
      measured.errors(), measured.requests(), 100 * measured.error_share(),
      100 * options.max_error_share));
}

absl::StatusOr<std::unique_ptr<Sender>> MakeSender(const ProgramOptions& options,
                                                   Preflight preflight, const Workload& workload,
                                                   Connected& connected, const Clock& clock) {
  if (!options.over_http()) {
    GrpcSenderOptions grpc;
    grpc.protocol = options.protocol;
    grpc.version = options.version;
    grpc.timeout = absl::ToChronoNanoseconds(options.timeout);
    grpc.max_sending = options.max_sending * static_cast<int>(connected.servers);
    grpc.stream_samples = std::move(preflight.stream_samples);
    grpc.slots = std::move(preflight.slots);
    return GrpcSender::Create(std::move(connected.callers), workload,
                              std::move(preflight.expectations), grpc, clock);
  }
  HttpSenderOptions http;
  http.address = options.http;
  http.connections = options.connections;
  http.version = options.version;
  http.timeout = absl::ToChronoNanoseconds(options.timeout);
  if (!options.connection.token_file.empty()) {
    absl::StatusOr<std::string> token = client::ReadToken(options.connection.token_file);
    if (!token.ok()) return token.status();
    http.token = *std::move(token);
  }
  return HttpSender::Create(workload, std::move(preflight.expectations), http, clock);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Session>> Session::Open(const ProgramOptions& options) {
  std::unique_ptr<Session> session(new Session(options));
  auto connected = Connect(options);
  if (!connected.ok()) return connected.status();
  // Reports a wrong address before the run and not after it.
  if (options.metrics_url) {
    if (absl::Status status = MetricsWatch(*options.metrics_url, options.metrics_security).Begin();
        !status.ok()) {
      return absl::Status(status.code(), absl::StrCat("--metrics: ", status.message()));
    }
  }
  client::Client& client = *connected->control;
  if (absl::Status status = ChooseShapes(client, session->options_); !status.ok()) {
    return client::WithHint(status);
  }
  absl::StatusOr<Workload> workload = Workload::Create(session->options_.mix, options.seed);
  if (!workload.ok()) return workload.status();
  session->workload_ = std::make_unique<Workload>(*std::move(workload));
  absl::StatusOr<Preflight> preflight =
      RunPreflight(client, *session->workload_, session->options_);
  if (!preflight.ok()) return client::WithHint(preflight.status());
  session->server_ = std::move(preflight->server);
  auto sender = MakeSender(session->options_, *std::move(preflight), *session->workload_,
                           *connected, session->pacer_);
  if (!sender.ok()) return sender.status();
  session->sender_ = *std::move(sender);
  session->fleets_ = std::move(connected->fleets);
  return session;
}

absl::Status Session::Run(const Attention& attention, Report& report) {
  if (options_.find_max) return RunSearch(attention, report);
  if (options_.sweep) return RunSweep(attention, report);
  if (absl::Status status = RunOnce(0, attention, report); !status.ok()) return status;
  return JudgeRun(report.run().result, options_);
}

void Session::RunAttended(LoadRun& run, const Attention& attention, RunReport& report) const {
  constexpr Duration kTick = std::chrono::milliseconds(20);
  constexpr Duration kLook = std::chrono::seconds(1);
  StopOptions goal;
  if (options_.duration != absl::InfiniteDuration()) {
    goal.duration = absl::ToChronoNanoseconds(options_.duration);
  }
  goal.requests = options_.requests;
  Progress progress(attention.progress, attention.terminal, goal);
  EarlyStop early_stop(EarlyOptions(options_, report.load));
  std::optional<MetricsWatch> watch;
  if (options_.metrics_url) watch.emplace(*options_.metrics_url, options_.metrics_security);
  absl::Status scraped;

  const SteadyClock clock{};
  const TimePoint measured_from = clock.Now() + absl::ToChronoNanoseconds(options_.warmup);
  std::atomic<bool> finished{false};
  std::thread runner([&] {
    AskForPreciseWakeups();
    run.Run();
    finished.store(true);
  });
  TimePoint next_look = clock.Now() + kLook;
  while (!finished.load()) {
    if (watch && !watch->begun() && clock.Now() >= measured_from) scraped = watch->Begin();
    if (attention.interrupts->Wait(kTick)) run.Stop(StopReason::kInterrupted);
    if (clock.Now() < next_look) continue;
    const LoadResult result = run.Snapshot();
    progress.Look(result);
    const StopReason reason = early_stop.Look(result);
    if (reason != StopReason::kNone) run.Stop(reason);
    next_look += kLook;
  }
  runner.join();
  report.result = run.Snapshot();
  progress.Finish(report.result);
  report.intervals = progress.intervals();
  if (!watch) return;
  absl::StatusOr<ServerMetrics> metrics = watch->Finish();
  if (metrics.ok()) {
    report.server_metrics = *std::move(metrics);
  } else if (attention.progress != nullptr) {
    // The run stays valid without the metrics.
    *attention.progress << "--metrics: " << (scraped.ok() ? metrics.status() : scraped).message()
                        << "\n";
  }
}

absl::Status Session::RunOnce(double load, const Attention& attention, Report& report) {
  // Each run has its own arrivals.
  const std::uint64_t seed = options_.seed + report.runs.size();
  LoadRun run(RunOptions(options_, load, seed), *workload_, *sender_, pacer_);
  RunReport one;
  one.load = load;
  if (load == 0 && options_.trace.empty() && options_.profile_text.empty()) {
    one.load = options_.open_loop() ? options_.rate : options_.concurrency;
  }
  const client::FleetCounts before = Sum(fleets_);
  RunAttended(run, attention, one);
  if (!fleets_.empty()) {
    one.fleet = Sum(fleets_);
    Add(before, -1, *one.fleet);
  }
  report.chosen = report.runs.size();
  report.runs.push_back(std::move(one));
  return JudgeResponses(report.runs.back().result, options_);
}

absl::Status Session::RunSweep(const Attention& attention, Report& report) {
  absl::Status failure;
  for (const double load : options_.sweep->values) {
    if (attention.progress != nullptr) {
      *attention.progress << absl::StreamFormat(
          "%s %g\n", options_.open_loop() ? "rate" : "concurrency", load);
    }
    if (absl::Status status = RunOnce(load, attention, report); !status.ok()) return status;
    const LoadResult& result = report.run().result;
    if (result.reason == StopReason::kInterrupted) break;
    // The points after an overload are wanted too.
    failure.Update(JudgeRun(result, options_));
  }
  return failure;
}

absl::Status Session::RunSearch(const Attention& attention, Report& report) {
  RateSearchOptions search_options;
  if (options_.rate > 0) search_options.start_rate = options_.rate;
  RateSearch search(search_options);
  std::size_t best = 0;
  while (const std::optional<double> rate = search.Next()) {
    if (absl::Status status = RunOnce(*rate, attention, report); !status.ok()) return status;
    const LoadResult& result = report.run().result;
    if (result.reason == StopReason::kInterrupted) {
      return absl::CancelledError("the search was interrupted");
    }
    const ObjectiveResult judged = Judge(*options_.objective, result, options_.max_error_share);
    if (judged.met) best = report.chosen;
    if (attention.progress != nullptr) {
      *attention.progress << absl::StreamFormat(
          "rate %.1f: p%g is %.3f ms: %s\n", *rate, options_.objective->percent,
          Milliseconds(judged.reached), judged.met ? "met" : "missed");
    }
    search.Observe(judged.met);
  }
  report.chosen = best;
  const std::int64_t responses = report.run().result.measured.ok();
  if (search.best() > 0 && responses < options_.objective->LeastResponses()) {
    return absl::OutOfRangeError(absl::StrFormat(
        "the search knows nothing: the run at %g/s had %d responses, wanted at least %d for p%g: "
        "--duration or --requests",
        search.best(), responses, options_.objective->LeastResponses(),
        options_.objective->percent));
  }
  if (search.best() > 0) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("no rate from ", search_options.least_rate,
                                          "/s on meets ", options_.objective->ToString()));
}

}  // namespace normd::load
