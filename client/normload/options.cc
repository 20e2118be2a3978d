#include "client/normload/options.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/flags/flags.h"

namespace normd::load {
namespace {

void AddFlags(ProgramOptions& o, client::FlagSet& flags) {
  flags.Add("server", &o.server, "HOST:PORT", "Server to load.");

  flags.Add("concurrency", &o.concurrency, "N",
            "Closed loop: callers that each wait for their answer before they send again.");
  flags.Add("rate", &o.rate, "R",
            "Open loop: requests per second, whatever the server does; 0 is the closed loop.");
  flags.Add("arrival", &o.arrival, "KIND", "Open loop: poisson or constant.");
  flags.Add("max_inflight", &o.max_inflight, "N",
            "Open loop: with so many unanswered, sending waits (and the wait is measured).");
  flags.Add("connections", &o.connections, "N",
            "TCP connections; 0 is one for each caller, at most 16.");

  flags.Add("model", &o.model, "MODEL", "Model to call; this or --mix is required.");
  flags.Add("shape", &o.shape, "DIMS", "The tensor's dimensions, with --model.");
  flags.Add("dtype", &o.dtype, "TYPE", "float32, float64, float16 or bfloat16, with --model.");
  flags.Add("mix", &o.mix_text, "MIX", "Several: model:shape:dtype:weight,...");
  flags.Add("version", &o.version, "N", "The models' version; 0 is the highest loaded.");
  flags.Add("seed", &o.seed, "N", "Of the tensors, the mix and the arrivals.");
  flags.Add("timeout", &o.timeout, "DURATION", "Deadline of each call.");

  flags.Add("duration", &o.duration, "DURATION",
            "How long to measure; without a limit when --requests is given.");
  flags.Add("requests", &o.requests, "N", "How many requests to measure; 0 is no limit.");
  flags.Add("warmup", &o.warmup, "DURATION", "Sent before, and not measured.");
  flags.Add("give_up_after", &o.give_up_after, "N",
            "Ends the run after so many UNAVAILABLE in a row; 0 never.");

  flags.Add("verify", &o.verify, "", "Checks answers against float64; needs --model_repository.");
  flags.Add("verify_every", &o.verify_every, "N", "Checks one answer in N.");
  flags.Add("model_repository", &o.model_repository, "DIR", "Folder of the server's models.");
  flags.Add("json", &o.json_path, "FILE", "Writes a report for programs (REPORT.md says what).");
  flags.Add("quiet", &o.quiet, "", "No progress, only the report.");
  flags.Add("max_error_share", &o.max_error_share, "X",
            "Exits with 1 when a larger share of the requests failed.");
  flags.Add("help", &o.help, "", "Prints this.");
}

absl::Status CheckNumbers(const ProgramOptions& o) {
  const auto wrong = [](const char* flag, const auto& got, const char* wanted) {
    return absl::InvalidArgumentError(absl::StrCat("--", flag, ": ", got, ", wanted ", wanted));
  };
  if (o.concurrency < 1 || o.concurrency > 100000) {
    return wrong("concurrency", o.concurrency, "1 to 100000");
  }
  if (!std::isfinite(o.rate) || o.rate < 0) return wrong("rate", o.rate, "0 or more");
  if (o.arrival != "poisson" && o.arrival != "constant") {
    return wrong("arrival", o.arrival, "poisson or constant");
  }
  if (o.max_inflight < 1) return wrong("max_inflight", o.max_inflight, "1 or more");
  if (o.connections < 0 || o.connections > 10000) {
    return wrong("connections", o.connections, "0 to 10000");
  }
  if (o.timeout <= absl::ZeroDuration())
    return wrong("timeout", absl::FormatDuration(o.timeout), "more than 0");
  if (o.duration <= absl::ZeroDuration())
    return wrong("duration", absl::FormatDuration(o.duration), "more than 0");
  if (o.requests < 0) return wrong("requests", o.requests, "0 or more");
  if (o.warmup < absl::ZeroDuration() || o.warmup > absl::Hours(24)) {
    return wrong("warmup", absl::FormatDuration(o.warmup), "0 to 24h");
  }
  if (o.give_up_after < 0) return wrong("give_up_after", o.give_up_after, "0 or more");
  if (o.verify_every < 1) return wrong("verify_every", o.verify_every, "1 or more");
  if (!(o.max_error_share >= 0 && o.max_error_share <= 1)) {
    return wrong("max_error_share", o.max_error_share, "0 to 1");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<MixEntry>> MixOf(const ProgramOptions& o) {
  if (o.model.empty() == o.mix_text.empty()) {
    return absl::InvalidArgumentError("--model and --mix: wanted one of them");
  }
  if (!o.mix_text.empty()) return ParseMix(o.mix_text);
  MixEntry entry;
  entry.model = o.model;
  absl::StatusOr<Shape> shape = client::ParseShape(o.shape);
  if (!shape.ok()) return shape.status();
  entry.shape = *std::move(shape);
  const absl::StatusOr<norm::DType> dtype = client::ParseDType(o.dtype);
  if (!dtype.ok()) return dtype.status();
  entry.dtype = *dtype;
  return std::vector<MixEntry>{std::move(entry)};
}

}  // namespace

absl::StatusOr<ProgramOptions> ParseOptions(absl::Span<const std::string> arguments) {
  ProgramOptions o;
  // Told apart from a duration that was given.
  const absl::Duration default_duration = std::exchange(o.duration, absl::InfiniteDuration());
  client::FlagSet flags;
  AddFlags(o, flags);
  const absl::StatusOr<std::vector<std::string>> others = flags.Parse(arguments);
  if (!others.ok()) return others.status();
  if (o.help) return o;
  if (!others->empty()) {
    return absl::InvalidArgumentError(absl::StrCat("unexpected argument ", others->front()));
  }
  if (o.duration == absl::InfiniteDuration() && o.requests == 0) o.duration = default_duration;
  if (absl::Status status = CheckNumbers(o); !status.ok()) return status;
  if (o.verify && o.model_repository.empty()) {
    return absl::InvalidArgumentError(
        "--verify: wanted --model_repository=DIR too: parameters are not sent by the server");
  }
  absl::StatusOr<std::vector<MixEntry>> mix = MixOf(o);
  if (!mix.ok()) return absl::InvalidArgumentError(mix.status().message());
  o.mix = *std::move(mix);
  constexpr int kDefaultConnections = 16;
  if (o.connections == 0) {
    o.connections =
        o.open_loop() ? kDefaultConnections : std::min(o.concurrency, kDefaultConnections);
  }
  return o;
}

std::string HelpText() {
  ProgramOptions defaults;
  client::FlagSet flags;
  AddFlags(defaults, flags);
  return absl::StrCat(
      "normload loads a normd server and measures what its users would see.\n\n"
      "  normload --model=instance_norm_64 --shape=1x64x56x56 --concurrency=16\n"
      "  normload --mix=instance_norm_64:1x64x56x56:float32:3,group_norm_64_8:2x64x28x28 "
      "--rate=2000\n\n",
      flags.Help(),
      "\nResponse time counts from the moment a request was meant to leave, so that a stalled "
      "server\nshows; service time counts from the moment it left.\n\n"
      "Exit codes: 0 done; 1 unreachable server, a wrong answer, or too many errors (the report "
      "is\n"
      "still written); 2 the command line is wrong. Ctrl-C stops sending and reports.\n");
}

}  // namespace normd::load
