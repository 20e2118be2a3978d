#include "client/normload/parse_options.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/channel_security.h"
#include "client/load/arrivals.h"
#include "client/normload/option_flags.h"
#include "flags/flag_set.h"

namespace normd::load {
namespace {

absl::StatusOr<std::vector<MixEntry>> MixOf(const ProgramOptions& o) {
  if (o.model.empty() == o.mix_text.empty()) {
    return absl::InvalidArgumentError(
        "--model and --mix: wanted one of them; normctl models lists what a server has loaded");
  }
  if (!o.mix_text.empty() && o.stream) {
    return absl::InvalidArgumentError(
        "--stream: wanted with --model; an entry of --mix says "
        ":stream itself");
  }
  if (!o.mix_text.empty()) return ParseMix(o.mix_text);
  MixEntry entry;
  entry.model = o.model;
  entry.shape_from_model = o.shape.empty();
  if (!entry.shape_from_model) {
    absl::StatusOr<Shape> shape = client::ParseShape(o.shape);
    if (!shape.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--shape: ", shape.status().message()));
    }
    entry.inputs.front().shape = *std::move(shape);
  }
  const absl::StatusOr<norm::DType> dtype = client::ParseDType(o.dtype);
  if (!dtype.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--dtype: ", dtype.status().message()));
  }
  entry.dtype = *dtype;
  if (o.stream) entry.stream_chunk_bytes = o.chunk_bytes;
  return std::vector<MixEntry>{std::move(entry)};
}

absl::Status SetProtocol(ProgramOptions& o) {
  if (o.protocol_text == "normd") return absl::OkStatus();
  const auto wrong = [&](absl::string_view wanted) {
    return absl::InvalidArgumentError(
        absl::StrCat("--protocol: ", o.protocol_text, ", wanted ", wanted));
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
    return absl::InvalidArgumentError(
        absl::StrCat("--http: \"", o.http, "\", wanted HOST:PORT, such as 127.0.0.1:8000"));
  }
  if (!o.connection.token_file.empty() && !client::IsLocalTarget(o.http)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--http: ", o.http,
                     ", wanted a server on this machine: --token_file is not sent in the clear"));
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
    return absl::InvalidArgumentError("--protocol: http, wanted normd or oip for several servers");
  }
  if (o.plane == Plane::kGrpc || o.plane == Plane::kUnixSocket) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--protocol: http, wanted normd or oip with --plane=", Name(o.plane)));
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

absl::Status ReadTrace(ProgramOptions& o) {
  const auto wrong = [&](absl::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat("--arrivals_file: ", o.arrivals_file, ": ", what));
  };
  std::ifstream file(o.arrivals_file, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file) return wrong("cannot read it");
  absl::StatusOr<std::vector<Duration>> trace = ParseTrace(text);
  if (!trace.ok()) return wrong(trace.status().message());
  o.trace = *std::move(trace);
  return absl::OkStatus();
}

// The flags that ask for several runs.
absl::Status SetPlan(ProgramOptions& o) {
  if (!o.sweep_text.empty()) {
    absl::StatusOr<Sweep> sweep = ParseSweep(o.sweep_text);
    if (!sweep.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--sweep: ", sweep.status().message()));
    }
    o.sweep = *std::move(sweep);
    const double most = *std::max_element(o.sweep->values.begin(), o.sweep->values.end());
    if (!o.sweep->over_rate) o.concurrency = static_cast<int>(most);
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
  if (!o.arrivals_file.empty()) return ReadTrace(o);
  if (o.rate > 0) o.profile = RateProfile::Constant(o.rate);
  if (o.profile_text.empty()) return absl::OkStatus();
  absl::StatusOr<RateProfile> profile = RateProfile::Parse(o.profile_text);
  if (!profile.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--", profile.status().message()));
  }
  o.profile = *std::move(profile);
  return absl::OkStatus();
}

// The metrics' URL and credentials: the certificate and the token of the calls.
absl::Status SetMetrics(ProgramOptions& o) {
  if (o.metrics.empty()) return absl::OkStatus();
  absl::StatusOr<client::HttpUrl> url = client::ParseHttpUrl(o.metrics);
  if (!url.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--metrics: ", url.status().message()));
  }
  o.metrics_security.tls = o.connection.files;
  if (!o.connection.token_file.empty()) {
    const bool is_ipv6 = url->host.find(':') != std::string::npos;
    const std::string target = absl::StrCat(is_ipv6 ? "[" : "", url->host, is_ipv6 ? "]:" : ":");
    if (!url->tls && !client::IsLocalTarget(target)) {
      return absl::InvalidArgumentError(absl::StrCat("--metrics: ", o.metrics,
                                                     ", wanted https or a server on this machine: "
                                                     "--token_file is not sent in the clear"));
    }
    absl::StatusOr<std::string> token = client::ReadToken(o.connection.token_file);
    if (!token.ok()) return token.status();
    o.metrics_security.token = *std::move(token);
  }
  o.metrics_url = *std::move(url);
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
  if (absl::Status status = SetArrivals(o); !status.ok()) return status;
  if (!o.slo.empty()) {
    const absl::StatusOr<Objective> objective = ParseObjective(o.slo);
    if (!objective.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--slo: ", objective.status().message()));
    }
    o.objective = *objective;
  }
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
  options.reports = *std::move(reports);
  if (options.reports.empty()) {
    return absl::InvalidArgumentError("merge: wanted at least one report that --json has written");
  }
  return options;
}

}  // namespace normd::load
