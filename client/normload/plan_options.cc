#include "client/normload/plan_options.h"

#include <cmath>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/load/arrivals.h"
#include "flags/flag_set.h"

namespace normd::load {
namespace {

// Checks of values that are wrong outside of their range.
template <typename T>
FlagCheck<T> From(T least, T most, const char* wanted) {
  return [=](T value) { return least <= value && value <= most ? "" : wanted; };
}

constexpr std::int64_t kMany = 1'000'000;

struct PlanFlagValues {
  PlanOptions& o;
  absl::Duration burst_length = absl::FromChrono(capacity::Bursts().length);
};

void AddArrivalFlags(PlanFlagValues& values, FlagSet& flags) {
  PlanOptions& o = values.o;
  flags.Section("What comes");
  flags.Add("rate", &o.rate, o.rate, "PER_SECOND", "Requests per second, of all clients together.",
            [](double value) { return value >= 0 && value <= 1e9 ? "" : "0 to 1e9"; });
  flags.Add("arrival", &o.arrival, "KIND",
            "poisson: many independent users; constant: evenly spaced; bursts: poisson, with a "
            "rate that alternates between two.");
  flags.Add("burst_factor", &o.bursts.factor, o.bursts.factor, "N",
            "Bursts: the rate within one, as a multiple of that between them.",
            From(1.0, 1000.0, "1 to 1000"));
  flags.Add("burst_share", &o.bursts.share, o.bursts.share, "SHARE", "Bursts: of the time.",
            From(0.001, 0.999, "0.001 to 0.999"));
  flags.Add("burst_length", &values.burst_length, values.burst_length, "DURATION",
            "Bursts: of each, in the mean.",
            From(absl::Milliseconds(1), absl::Hours(1), "1ms to 1h"));
  flags.Add("arrivals_file", &o.arrivals_file, "FILE",
            "Instead: the time of a request in seconds on each line, as normload sends them; all "
            "of it is simulated.");
}

void AddFleetFlags(PlanOptions& o, FlagSet& flags) {
  flags.Section("The fleet");
  flags.Add("replicas", &o.replicas, o.replicas, "N",
            "0: the fewest that meet --slo; else what so many do.",
            From<std::int64_t>(0, kMany, "0 to 1000000"));
  flags.Add("max_replicas", &o.max_replicas, o.max_replicas, "N", "The search ends there.",
            From<std::int64_t>(1, kMany, "1 to 1000000"));
  flags.Add("balance", &o.balance_text, "POLICY", "round_robin or least_outstanding.");
  flags.Add("clients", &o.clients, o.clients, "N",
            "Clients that balance by themselves; normload has one for each of its connections.",
            From(1, 100000, "1 to 100000"));
  flags.Add("lanes", &o.lanes, o.lanes, "N",
            "Lanes of a replica; 0: as many as the first report's server had.",
            From(0, 4096, "0 to 4096"));
  flags.Add("inline_lanes", &o.inline_lanes, o.inline_lanes, "N",
            "Threads of a replica that compute a small request as it comes.",
            From(0, 4096, "0 to 4096"));
  flags.Add("max_batch_requests", &o.max_batch_requests, o.max_batch_requests, "N",
            "How many requests fit into a batch; 0: as many as the largest in the reports had.",
            From<std::int64_t>(0, kMany, "0 to 1000000"));
  flags.Add("max_queue_delay", &o.max_queue_delay, o.max_queue_delay, "DURATION",
            "As the server's flag.", From(absl::ZeroDuration(), absl::Minutes(1), "0 to 1m"));
  flags.Add("max_queue_requests", &o.max_queue_requests, o.max_queue_requests, "N",
            "As the server's flag.", From<std::int64_t>(1, kMany, "1 to 1000000"));
  flags.Add("crash_every", &o.crash_every, o.crash_every, "DURATION",
            "A replica crashes so often, in the mean; 0 never.",
            From(absl::ZeroDuration(), absl::Hours(100000), "0 to 100000h"));
  flags.Add("hang_every", &o.hang_every, o.hang_every, "DURATION",
            "A replica hangs so often, in the mean; 0 never.",
            From(absl::ZeroDuration(), absl::Hours(100000), "0 to 100000h"));
  flags.Add("outage_length", &o.outage_length, o.outage_length, "DURATION", "How long it does.",
            From(absl::Milliseconds(1), absl::Hours(24), "1ms to 24h"));
  flags.Add("outages_file", &o.outages_file, "FILE",
            "Also: \"crash\" or \"hang\", the replica's number from 0, the beginning and the "
            "length in seconds on each line.");
}

void AddFlags(PlanFlagValues& values, FlagSet& flags) {
  PlanOptions& o = values.o;
  AddArrivalFlags(values, flags);
  AddFleetFlags(o, flags);
  flags.Section("The answer");
  flags.Add("slo", &o.slo, "OBJECTIVE", "What is to be met, such as p99=50ms.");
  flags.Add("max_error_share", &o.max_error_share, o.max_error_share, "SHARE",
            "Requests that may be refused or lost.", From(0.0, 1.0, "0 to 1"));
  flags.Add("max_load", &o.max_load, o.max_load, "SHARE",
            "Of what full batches can do, that the answer may use: a fleet of thousands takes "
            "longer than any simulation to show that it is a little too small.",
            From(0.01, 1.0, "0.01 to 1"));
  flags.Add("duration", &o.duration, o.duration, "DURATION",
            "Simulated, after a warm-up of a quarter of it; 0: 100,000 requests, 200 times what "
            "the largest batch takes, and 50 bursts.",
            From(absl::ZeroDuration(), absl::Hours(1000), "0 to 1000h"));
  flags.Add("seed", &o.seed, o.seed, "N", "Of everything random.");
  flags.Add("json", &o.json, "FILE",
            "Writes what each simulation gave (client/normload/REPORT.md).");
  flags.Add("help", &o.help, "", "Prints this.");
}

absl::Status Wanted(const std::string& what) { return absl::InvalidArgumentError(what); }

absl::Status ReadTrace(PlanOptions& o) {
  if (o.arrivals_file.empty()) {
    return o.rate > 0 ? absl::OkStatus() : Wanted("--rate: 0, wanted requests per second");
  }
  if (o.rate > 0) return Wanted("--arrivals_file: wanted without --rate");
  std::ifstream file(o.arrivals_file, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file) return Wanted(absl::StrCat("--arrivals_file: cannot read ", o.arrivals_file));
  absl::StatusOr<std::vector<Duration>> trace = ParseTrace(text);
  if (!trace.ok()) {
    return Wanted(
        absl::StrCat("--arrivals_file: ", o.arrivals_file, ": ", trace.status().message()));
  }
  o.trace = *std::move(trace);
  return absl::OkStatus();
}

// A line of --outages_file; nullopt: it is none.
std::optional<capacity::Outage> ParseOutage(absl::string_view line) {
  const std::vector<absl::string_view> fields =
      absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
  capacity::Outage outage;
  std::uint32_t replica = 0;
  double begin_s = 0;
  double length_s = 0;
  if (fields.size() != 4 || (fields[0] != "crash" && fields[0] != "hang") ||
      !absl::SimpleAtoi(fields[1], &replica) || !absl::SimpleAtod(fields[2], &begin_s) ||
      !absl::SimpleAtod(fields[3], &length_s) || !(begin_s >= 0 && begin_s < 1e9) ||
      !(length_s > 0 && length_s < 1e9)) {
    return std::nullopt;
  }
  outage.kind = fields[0] == "crash" ? capacity::OutageKind::kCrash : capacity::OutageKind::kHang;
  outage.replica = replica;
  outage.begin = Duration(std::llround(1e9 * begin_s));
  outage.length = Duration(std::llround(1e9 * length_s));
  return outage;
}

absl::Status ReadOutages(PlanOptions& o) {
  if (o.outages_file.empty()) return absl::OkStatus();
  std::ifstream file(o.outages_file, std::ios::binary);
  if (!file) return Wanted(absl::StrCat("--outages_file: cannot read ", o.outages_file));
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    const std::optional<capacity::Outage> outage = ParseOutage(line);
    if (!outage) {
      return Wanted(absl::StrCat("--outages_file: line ", number, ": \"", line.substr(0, 60),
                                 "\", wanted crash or hang, a replica, a beginning and a length"));
    }
    o.listed_outages.push_back(*outage);
  }
  return absl::OkStatus();
}

absl::Status SetOutages(PlanOptions& o) {
  const bool crashes = o.crash_every > absl::ZeroDuration();
  if (crashes && o.hang_every > absl::ZeroDuration()) {
    return Wanted("--hang_every: wanted without --crash_every");
  }
  o.outages.kind = crashes ? capacity::OutageKind::kCrash : capacity::OutageKind::kHang;
  o.outages.mean_between = absl::ToChronoNanoseconds(crashes ? o.crash_every : o.hang_every);
  o.outages.length = absl::ToChronoNanoseconds(o.outage_length);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PlanOptions> ParsePlanOptions(absl::Span<const std::string> arguments) {
  PlanOptions o;
  PlanFlagValues values{o};
  FlagSet flags;
  AddFlags(values, flags);
  absl::StatusOr<std::vector<std::string>> reports = flags.Parse(arguments);
  if (!reports.ok()) return reports.status();
  if (o.help) return o;
  if (absl::Status status = flags.Check(); !status.ok()) return status;
  o.reports = *std::move(reports);
  o.bursts.length = absl::ToChronoNanoseconds(values.burst_length);
  if (o.reports.empty()) return Wanted("plan: wanted at least one report that --json has written");
  if (o.arrival != "poisson" && o.arrival != "constant" && o.arrival != "bursts") {
    return Wanted(
        absl::StrCat("--arrival: \"", o.arrival, "\", wanted poisson, constant or bursts"));
  }
  if (o.replicas == 0 && o.slo.empty()) {
    return Wanted("--slo: empty, wanted an objective, such as p99=50ms, or --replicas=N");
  }
  if (!o.slo.empty()) {
    const absl::StatusOr<Objective> objective = ParseObjective(o.slo);
    if (!objective.ok()) return Wanted(absl::StrCat("--slo: ", objective.status().message()));
    o.objective = *objective;
  }
  const auto balance = client::ParseBalancePolicy(o.balance_text);
  if (!balance.ok()) return Wanted(absl::StrCat("--balance: ", balance.status().message()));
  o.balance = *balance;
  if (absl::Status status = ReadTrace(o); !status.ok()) return status;
  if (absl::Status status = SetOutages(o); !status.ok()) return status;
  if (absl::Status status = ReadOutages(o); !status.ok()) return status;
  return o;
}

std::string PlanHelpText() {
  PlanOptions defaults;
  PlanFlagValues values{defaults};
  FlagSet flags;
  AddFlags(values, flags);
  return absl::StrCat(
      "normload plan says how many replicas a load needs, by simulating a fleet of servers that "
      "take the\ntimes that reports of one server tell.\n\n"
      "  normload --model=M --sweep=concurrency=1..64*2 --json=one.json\n"
      "  normload plan one.json --rate=20000 --slo=p99=50ms\n"
      "  normload plan one.json --rate=20000 --replicas=40 --balance=least_outstanding "
      "--crash_every=1h\n\n",
      flags.Help(),
      "\nExit codes: 0 the objective is met; 1 it is not, with --replicas or by any fleet up to "
      "--max_replicas;\n2 the command line is wrong, or a file cannot be read or written.\n");
}

}  // namespace normd::load
