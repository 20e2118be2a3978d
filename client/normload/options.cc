#include "client/normload/options.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "client/channel_security.h"
#include "client/load/arrivals.h"
#include "flags/flag_checks.h"
#include "flags/flag_set.h"

namespace normd::load {
namespace {

absl::StatusOr<std::vector<Duration>> ReadTrace(const std::string& path) {
  const std::optional<std::string> text = ReadWhole(path);
  if (!text) return absl::InvalidArgumentError(absl::StrCat(path, ": cannot read it"));
  absl::StatusOr<std::vector<Duration>> trace = ParseTrace(*text);
  if (trace.ok()) return trace;
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", trace.status().message()));
}

// More than any machine reaches; it also bounds a search and its clock.
constexpr double kMaxRate = 1e6;

void AddServerFlags(ProgramOptions& o, FlagSet& flags) {
  flags.Section("The server:");
  flags.Add("server", &o.server, "HOST:PORT",
            "The server's gRPC address (or unix:///path), or those of several with commas between, "
            "or a name with several addresses as dns:///HOST:PORT.");
  o.balance.AddTo(flags);
  flags.Add("protocol", &o.protocol_text, "NAME",
            "normd: Normalize and NormalizeStream; oip: ModelInfer of the Open Inference Protocol, "
            "whose responses tell neither stages nor batches; http: the same over HTTP, with "
            "binary tensors, to --http.",
            BeOneOf({"normd", "oip", "http"}));
  flags.Add("http", &o.http, "HOST:PORT",
            "With --protocol=http: where requests go. --server is asked for models and shapes.");
  flags.Add("connections", &o.connections, "N",
            "Connections; 0 is one for each caller, at most 16. A connection of HTTP has one call "
            "at a time: 0 is then one for each caller, and 64 in an open loop.",
            From(0, 10000));
  o.plane_flags.AddTo(flags);
  o.connection.AddTo(flags);
}

void AddLoadFlags(ProgramOptions& o, FlagSet& flags) {
  flags.Section(
      "When to send: in a closed loop (what can the server do?), or in an open one (what do users "
      "wait?):");
  flags.Add("concurrency", &o.concurrency, "N",
            "Closed loop: callers that each wait for their response before they send again.",
            From(1, 100000));
  flags.Add("rate", &o.rate, "R",
            "Open loop: requests per second, whatever the server does; 0 is the closed loop.",
            FromReal(0, kMaxRate));
  flags.Add("arrival", &o.arrival, "KIND", "Open loop: poisson or constant.",
            BeOneOf({"poisson", "constant"}));
  flags.Add("profile", &o.profile_text, "STEPS",
            "Open loop: steps and ramps instead of --rate, such as 1000@10s,1000..4000@30s.");
  flags.AddParsed("arrivals_file", &o.arrivals_file, &o.trace, "FILE",
                  "Open loop: a trace, with the time of a request in seconds on each line.",
                  ReadTrace);
  flags.Add(
      "max_inflight", &o.max_inflight, "N",
      "Open loop: at this many unanswered requests, sending waits (and the wait is measured).",
      From(1));
  flags.Add("max_sending", &o.max_sending, "N",
            "Normalize calls of one connection that gRPC has at once. Others wait in normload: the "
            "newest goes first once the oldest has spent half its --timeout, and a call whose "
            "--timeout has passed when another ends is not sent. 0: gRPC has all, and sends the "
            "oldest first, however late.",
            From(0));
  flags.AddParsed("sweep", &o.sweep_text, &o.sweep, "VARIABLE=VALUES",
                  "A run at each of several loads: concurrency=1..64*2, or rate=1000..8000+1000.",
                  ParseSweep);
  flags.Add("find_max", &o.find_max, "",
            "Searches the highest rate that meets --slo, from --rate on (100 by default).");
  flags.AddParsed("slo", &o.slo, &o.objective, "OBJECTIVE",
                  "Objective of the response time, such as p99=5ms: whether it was met, and the "
                  "goodput within it.",
                  ParseObjective);
}

void AddRequestFlags(ProgramOptions& o, FlagSet& flags) {
  flags.Section("What to send:");
  flags.Add("model", &o.model, "MODEL", "Model to call; this or --mix is required.");
  flags.AddParsed("shape", &o.shape_text, &o.shape, "DIMS",
                  "The tensor's dimensions, with --model, such as 1x64x56x56; without it, some "
                  "that suit the model.",
                  client::ParseShape);
  flags.AddParsed("dtype", &o.dtype_text, &o.dtype, "TYPE",
                  "float32, float64, float16 or bfloat16, with --model.", client::ParseDType);
  flags.Add("stream", &o.stream, "",
            "Sends the tensor through NormalizeStream, with --model: the call for tensors that are "
            "larger than a message.");
  flags.AddBytes("chunk_bytes", &o.chunk_bytes, o.chunk_bytes,
                 "Bytes of the tensor in each message of a stream.", From(1, kMaxChunkBytes));
  flags.Add("mix", &o.mix_text, "MIX",
            "Several: model:shape:dtype:weight,...; an entry may end with :priority=high, "
            ":timeout=20ms, :queue_timeout=5ms, :stream or :stream=256KiB, :outputs=y+mean, "
            ":NAME=DIMS (a further input, such as :y=8x512).");
  flags.Add("version", &o.version, "N", "The models' version; 0 is the highest loaded.");
  flags.Add("seed", &o.seed, "N", "Seed of the tensors, the mix and the arrivals.");
  flags.Add("timeout", &o.timeout, "DURATION", "Deadline of each call; inf is none.", BePositive);
  flags.Add("cancel_share", &o.cancel_share, "X", "Share of the calls that the client cancels.",
            FromReal(0, 1));
  flags.Add("cancel_after", &o.cancel_after, "DURATION",
            "Time after which it cancels them, to about a millisecond.", UpTo(absl::Hours(1)));
}

void AddStopFlags(ProgramOptions& o, FlagSet& flags) {
  flags.Section("When to stop:");
  flags.Add("duration", &o.duration, "DURATION",
            "How long to measure, each run; 5s by default with --find_max, 60s with --stable_p99, "
            "without a limit where --requests, --profile or --arrivals_file is given.",
            BePositive);
  flags.Add("requests", &o.requests, "N", "How many requests to measure; 0 is no limit.", From(0));
  flags.Add("warmup", &o.warmup, "DURATION", "Time of load before the measurement.",
            UpTo(absl::Hours(24)));
  flags.Add("stable_p99", &o.stable_p99, "X",
            "Ends the run when the p99 of three windows in a row differ by at most this share, "
            "such as 0.05; 0 never.",
            FromReal(0));
  flags.Add("stable_window", &o.stable_window, "DURATION", "Length of such a window.",
            FromTime(absl::Nanoseconds(1), absl::Hours(1)));
  flags.Add("stop_error_share", &o.stop_error_share, "X",
            "Ends the run when a larger share of at least 100 requests failed; 1 never.",
            FromReal(0, 1));
  flags.Add("give_up_after", &o.give_up_after, "N",
            "Ends the run after this many UNAVAILABLE responses in a row; 0: never.", From(0));
}

void AddFileFlags(ReportFiles& files, FlagSet& flags) {
  flags.Section("Reports, beside the table that is always printed:");
  flags.Add("json", &files.json, "FILE", "Writes a report for programs (REPORT.md says what).");
  flags.Add("csv", &files.csv, "FILE", "Writes the runs and their seconds as a table.");
  flags.Add("html", &files.html, "FILE", "Writes a page with charts, which needs nothing else.");
}

absl::Status Check(const ReportFiles& files) {
  return CheckFilesDiffer({{"--json", files.json}, {"--csv", files.csv}, {"--html", files.html}});
}

void AddFlags(ProgramOptions& o, FlagSet& flags) {
  AddServerFlags(o, flags);
  AddRequestFlags(o, flags);
  AddLoadFlags(o, flags);
  AddStopFlags(o, flags);
  AddFileFlags(o.files, flags);
  flags.AddParsed("metrics", &o.metrics, &o.metrics_url, "URL",
                  "The server's metrics, such as http://127.0.0.1:8002/metrics: the reports then "
                  "tell of its stages during the run. They are asked for with the certificate and "
                  "the token of the calls; https where the port speaks TLS.",
                  client::ParseHttpUrl);
  flags.Add("quiet", &o.quiet, "", "No progress, only the report.");
  flags.Section("What is a failure:");
  flags.Add("max_error_share", &o.max_error_share, "X",
            "Exits with 1 when a larger share of the requests failed.", FromReal(0, 1));
  flags.Add("require_slo", &o.require_slo, "",
            "Exits with 1 when --slo was missed, by any run of a sweep.");
  flags.Add("verify", &o.verify, "", "Checks responses against float64; needs --model_repository.");
  flags.Add("verify_every", &o.verify_every, "N", "Checks one response in N.", From(1));
  flags.Add("model_repository", &o.model_repository, "DIR", "Folder of the server's models.");
  flags.Section("");
  flags.Add("help", &o.help, "", "Prints this help.");
}

absl::StatusOr<std::vector<MixEntry>> MixOf(const ProgramOptions& o) {
  if (o.model.empty() == o.mix_text.empty()) {
    return absl::InvalidArgumentError(
        "--model and --mix: wanted one of them; normctl models lists what a server has loaded");
  }
  if (!o.mix_text.empty() && o.stream) {
    return absl::InvalidArgumentError(
        "--stream: wanted with --model; an entry of --mix says :stream itself");
  }
  if (!o.mix_text.empty()) return ParseMix(o.mix_text);
  MixEntry entry;
  entry.model = o.model;
  entry.shape_from_model = !o.shape.has_value();
  if (o.shape) entry.inputs.front().shape = *o.shape;
  entry.dtype = o.dtype;
  if (o.stream) entry.stream_chunk_bytes = o.chunk_bytes;
  return std::vector<MixEntry>{std::move(entry)};
}

absl::Status SetProtocol(ProgramOptions& o) {
  if (o.protocol_text == "normd") return absl::OkStatus();
  const auto wrong = [&](absl::string_view wanted) {
    return FlagSet::Wrong("protocol", o.protocol_text, wanted);
  };
  for (const MixEntry& entry : o.mix) {
    if (!entry.streamed()) continue;
    return wrong(
        absl::StrCat("normd for ", entry.ToString(), ": only normd's protocol has streams"));
  }
  o.protocol = client::Protocol::kOpenInference;
  if (!o.over_http()) return absl::OkStatus();
  client::ClientOptions connection;
  o.connection.Set(connection);
  if (connection.tls) return wrong("normd or oip with TLS, which normload has over gRPC alone");
  if (absl::StatusOr<client::HttpUrl> url = client::ParseHttpUrl(o.http);
      !url.ok() || url->tls || url->path != "/") {
    return FlagSet::Wrong("http", absl::StrCat("\"", o.http, "\""),
                          "HOST:PORT, such as 127.0.0.1:8000");
  }
  if (!o.connection.token_file.empty() && !client::IsLocalTarget(o.http)) {
    return FlagSet::Wrong("http", o.http,
                          "a server on this machine: --token_file is not sent in the clear");
  }
  return absl::OkStatus();
}

PlannedCalls CallsOf(const ProgramOptions& o) {
  PlannedCalls calls{o.server, o.fleet.has_value(), "", o.cancel_share, o.max_sending};
  for (const MixEntry& entry : o.mix) {
    if (entry.streamed()) calls.stream = entry.ToString();
  }
  return calls;
}

// The calls' plane; HTTP has messages over TCP alone.
absl::Status SetPlane(ProgramOptions& o) {
  const absl::StatusOr<Plane> plane = o.plane_flags.Make(CallsOf(o));
  if (!plane.ok()) return plane.status();
  o.plane = *plane;
  if (!o.over_http()) return absl::OkStatus();
  if (o.fleet) {
    return FlagSet::Wrong("protocol", "http", "normd or oip for several servers");
  }
  if (o.plane == Plane::kGrpc || o.plane == Plane::kUnixSocket) return absl::OkStatus();
  return FlagSet::Wrong("protocol", "http",
                        absl::StrCat("normd or oip with --plane=", Name(o.plane)));
}

void SetConnections(ProgramOptions& o) {
  if (o.connections != 0) return;
  constexpr int kDefault = 16;
  constexpr int kDefaultOverHttp = 64;  // Each has one call at a time.
  if (o.over_http()) {
    o.connections = o.open_loop() ? kDefaultOverHttp : o.concurrency;
  } else {
    o.connections = o.open_loop() ? kDefault : std::min(o.concurrency, kDefault);
  }
}

// The flags that ask for several runs.
absl::Status SetPlan(ProgramOptions& o) {
  if (o.sweep && !o.sweep->over_rate) {
    const double most = *std::max_element(o.sweep->values.begin(), o.sweep->values.end());
    o.concurrency = static_cast<int>(most);
  }
  const bool varies = !o.profile_text.empty() || !o.arrivals_file.empty();
  if (o.sweep && (o.find_max || varies || o.rate > 0)) {
    return absl::InvalidArgumentError(
        "--sweep: it sets the load; wanted none of --find_max, --rate, --profile, --arrivals_file");
  }
  if (o.find_max && varies) {
    return absl::InvalidArgumentError(
        "--find_max: it sets the load; wanted neither --profile nor --arrivals_file");
  }
  if (o.find_max && !o.objective) {
    return absl::InvalidArgumentError("--find_max: wanted --slo too, such as --slo=p99=5ms");
  }
  return absl::OkStatus();
}

// Makes the schedule from its flags.
absl::Status SetArrivals(ProgramOptions& o) {
  if ((o.rate > 0) + !o.profile_text.empty() + !o.arrivals_file.empty() > 1) {
    return absl::InvalidArgumentError(
        "--rate, --profile and --arrivals_file: wanted at most one of them");
  }
  if (o.rate > 0) o.profile = RateProfile::Constant(o.rate);
  if (o.profile_text.empty()) return absl::OkStatus();
  absl::StatusOr<RateProfile> profile = RateProfile::Parse(o.profile_text);
  if (!profile.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--", profile.status().message()));
  }
  o.profile = *std::move(profile);
  return absl::OkStatus();
}

// The metrics' credentials: the certificate and the token of the calls.
absl::Status SetMetrics(ProgramOptions& o) {
  o.metrics_security.tls = o.connection.files;
  if (!o.metrics_url || o.connection.token_file.empty()) return absl::OkStatus();
  const std::string& host = o.metrics_url->host;
  const bool is_ipv6 = host.find(':') != std::string::npos;
  const std::string target = absl::StrCat(is_ipv6 ? "[" : "", host, is_ipv6 ? "]:" : ":");
  if (!o.metrics_url->tls && !client::IsLocalTarget(target)) {
    return FlagSet::Wrong(
        "metrics", o.metrics,
        "https or a server on this machine: --token_file is not sent in the clear");
  }
  absl::StatusOr<std::string> token = client::ReadToken(o.connection.token_file);
  if (!token.ok()) return token.status();
  o.metrics_security.token = *std::move(token);
  return absl::OkStatus();
}

// The time limits if the user gave none.
void SetDefaultTimes(absl::Duration duration, absl::Duration warmup, ProgramOptions& o) {
  const bool ends_by_itself = o.requests > 0 || !o.profile_text.empty() || !o.arrivals_file.empty();
  if (o.duration == absl::InfiniteDuration() && !ends_by_itself) {
    o.duration = o.stable_p99 > 0 ? absl::Seconds(60) : o.find_max ? absl::Seconds(5) : duration;
  }
  // A trace is sent as it is: its beginning counts.
  if (o.warmup == -absl::InfiniteDuration()) {
    o.warmup = o.arrivals_file.empty() ? warmup : absl::ZeroDuration();
  }
}

}  // namespace

absl::StatusOr<ProgramOptions> ParseOptions(absl::Span<const std::string> arguments) {
  ProgramOptions o;
  // Distinguishes the default from a given value.
  const absl::Duration default_duration = std::exchange(o.duration, absl::InfiniteDuration());
  const absl::Duration default_warmup = std::exchange(o.warmup, -absl::InfiniteDuration());
  FlagSet flags;
  AddFlags(o, flags);
  const absl::StatusOr<std::vector<std::string>> others = flags.Parse(arguments);
  if (!others.ok()) return others.status();
  if (o.help) return o;
  if (!others->empty()) {
    return absl::InvalidArgumentError(absl::StrCat("unexpected argument ", others->front()));
  }
  SetDefaultTimes(default_duration, default_warmup, o);
  if (absl::Status status = flags.Check(); !status.ok()) return status;
  if (absl::Status status = Check(o.files); !status.ok()) return status;
  if (absl::Status status = SetArrivals(o); !status.ok()) return status;
  if (absl::Status status = SetMetrics(o); !status.ok()) return status;
  if (o.require_slo && !o.objective) {
    return absl::InvalidArgumentError("--require_slo: wanted --slo too, such as --slo=p99=5ms");
  }
  if (absl::Status status = SetPlan(o); !status.ok()) return status;
  if (o.verify && o.model_repository.empty()) {
    return absl::InvalidArgumentError(
        "--verify: wanted --model_repository=DIR too: parameters are not sent by the server");
  }
  absl::StatusOr<std::vector<MixEntry>> mix = MixOf(o);
  if (!mix.ok()) return absl::InvalidArgumentError(mix.status().message());
  o.mix = *std::move(mix);
  if (absl::Status status = SetProtocol(o); !status.ok()) return status;
  auto fleet = o.balance.Make(o.server);
  if (!fleet.ok()) return fleet.status();
  o.fleet = *std::move(fleet);
  if (absl::Status status = SetPlane(o); !status.ok()) return status;
  SetConnections(o);
  return o;
}

absl::StatusOr<MergeOptions> ParseMergeOptions(absl::Span<const std::string> arguments) {
  MergeOptions options;
  FlagSet flags;
  AddFileFlags(options.files, flags);
  absl::StatusOr<std::vector<std::string>> reports = flags.Parse(arguments);
  if (!reports.ok()) return reports.status();
  if (absl::Status status = Check(options.files); !status.ok()) return status;
  options.reports = *std::move(reports);
  if (options.reports.empty()) {
    return absl::InvalidArgumentError("merge: wanted at least one report that --json has written");
  }
  return options;
}

std::string HelpText() {
  ProgramOptions defaults;
  FlagSet flags;
  AddFlags(defaults, flags);
  return absl::StrCat(
      "Usage: normload --model=MODEL [flags]\n"
      "       normload merge FILE... [flags]\n\n"
      "normload loads a normd server and measures what its users would see.\n\n"
      "  normload --model=instance_norm_64                          # What can it do?\n"
      "  normload --model=instance_norm_64 --rate=500 --html=r.html # What do users wait?\n"
      "  normload --model=instance_norm_64 --find_max --slo=p99=5ms # How much load may it get?\n"
      "  normload --model=instance_norm_64 --sweep=concurrency=1..64*2\n"
      "  normload --mix=instance_norm_64:1x64x56x56:float32:3,group_norm_64_8:2x64x28x28 "
      "--rate=2000\n"
      "  normload merge one.json two.json --html=both.html          # Several processes\n\n",
      flags.Help(),
      "\nResponse time counts from the moment a request was meant to leave, so that a stalled\n"
      "server shows; service time counts from the moment it left.\n\n"
      "Exit codes: 0 done; 1 unreachable server, a wrong response, too many errors, no rate that\n"
      "meets the objective, too few responses to tell, or an objective missed with --require_slo\n"
      "(the report is still written); 2 the command line is wrong, or a report cannot be written.\n"
      "Ctrl-C stops sending and reports.\n");
}

}  // namespace normd::load
