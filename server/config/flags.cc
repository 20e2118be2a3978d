#include <algorithm>
#include <string>
#include <vector>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "server/config/config.h"

ABSL_FLAG(std::string, model_repository, "models",
          "folder of models: <name>/config.textproto and <name>/<version>/params.safetensors");
ABSL_FLAG(std::string, listen, "127.0.0.1:8001", "host:port of gRPC; port 0 takes a free one");
ABSL_FLAG(std::string, metrics_listen, "127.0.0.1:8002",
          "host:port of /metrics; port 0 takes a free one");
ABSL_FLAG(std::string, device, "auto",
          "auto (every CUDA device, else the CPU), cpu, cuda, or cuda:0,1");
ABSL_FLAG(std::int64_t, max_request_bytes, std::int64_t{256} << 20,
          "largest tensor of one request, in bytes");
ABSL_FLAG(std::int64_t, max_inflight_bytes, std::int64_t{1} << 30,
          "inputs and outputs of all requests inside at once, in bytes");
ABSL_FLAG(std::int64_t, max_inflight_requests, 16384, "requests inside at once");
ABSL_FLAG(
    int, max_connection_calls, 0,
    "calls of one connection at once, streams among them; a client's further ones wait on its "
    "side, unsent; 0: two for each core, at least four");
ABSL_FLAG(
    std::int64_t, max_transport_bytes, std::int64_t{1} << 30,
    "what gRPC may hold of messages on their way in and out, in bytes; as it fills, clients may "
    "send less; 0: no limit");
ABSL_FLAG(std::int64_t, max_connections, 0,
          "open connections of the gRPC port; more are closed at once; 0: as many as there are "
          "descriptors for (two a connection), at most 10000");
ABSL_FLAG(std::int64_t, max_peer_connections, 0,
          "of them, those of one address (of IPv6: of one /64); 0: three quarters");
ABSL_FLAG(absl::Duration, handshake_timeout, absl::Seconds(10),
          "how long a client may take to begin HTTP/2 and to acknowledge the server's settings, "
          "such as 5s; 0: for ever");
ABSL_FLAG(absl::Duration, message_timeout, absl::Seconds(30),
          "how long a call's message may be half sent at less than min_message_rate before its "
          "connection is ended, such as 10s; 0: for ever");
ABSL_FLAG(std::int64_t, min_message_rate, 4096,
          "bytes per second that a half-sent message must bring");
ABSL_FLAG(absl::Duration, keepalive_time, absl::Minutes(1),
          "how long a connection may be silent before the server pings its client, such as 30s; 0: "
          "never");
ABSL_FLAG(absl::Duration, keepalive_timeout, absl::Seconds(20),
          "how long the answer to that ping may take before the connection is ended, such as 10s");
ABSL_FLAG(absl::Duration, min_ping_interval, absl::Seconds(10),
          "a client that pings more often, with nothing to read between, is sent away, such as 1m");
ABSL_FLAG(absl::Duration, max_connection_idle, absl::Hours(1),
          "how long a connection may have no call before it is closed, such as 10m; 0: for ever");
ABSL_FLAG(absl::Duration, max_connection_age, absl::ZeroDuration(),
          "how old a connection may get before its client is asked to make a new one, such as 1h; "
          "0: any age");
ABSL_FLAG(absl::Duration, max_connection_age_grace, absl::ZeroDuration(),
          "how long its calls may then take, such as 5m; 0: as long as they like");
ABSL_FLAG(std::int64_t, stream_window_bytes, std::int64_t{32} << 20,
          "what the server holds at once of one stream's inputs, in bytes; a row may have three "
          "quarters of it");
ABSL_FLAG(absl::Duration, stream_idle_timeout, absl::Minutes(1),
          "how long a stream's client may not send what is waited for, or not take a message that "
          "is being sent, before it is given up, such as 10s; 0: for ever");
ABSL_FLAG(absl::Duration, response_timeout, absl::Minutes(1),
          "how long a client may take to take a response before it is given up, such as 10s; to it "
          "comes a second for each MiB; 0: for ever");
ABSL_FLAG(double, max_connection_share, 0.5,
          "how much one connection may have of max_inflight_bytes and of max_inflight_requests: "
          "this share of what is free and its own together; 1: no bound, for a proxy in front");
ABSL_FLAG(double, max_peer_share, 0.75,
          "likewise for all connections from one address, of IPv6 from one network of 64 bits");
ABSL_FLAG(std::int64_t, max_batch_rows, std::int64_t{1} << 20,
          "rows of one batch (a larger request makes a batch of its own)");
ABSL_FLAG(std::int64_t, max_batch_bytes, 0,
          "inputs of one batch, in bytes; 0: what suits the device, 256 KiB for the CPU, 2 MiB for "
          "CUDA");
ABSL_FLAG(absl::Duration, max_queue_delay, absl::ZeroDuration(),
          "how long a free lane waits for company for the oldest request, such as 200us");
ABSL_FLAG(std::int64_t, max_queue_requests, 1024, "requests that wait for one model version");
ABSL_FLAG(
    std::int64_t, max_inline_bytes, std::int64_t{1} << 20,
    "largest tensor that is computed on the thread that received it when nothing waits, in bytes; "
    "with CUDA at most 256 KiB; 0: every request goes to a lane");
ABSL_FLAG(absl::Duration, priority_aging, absl::Seconds(1),
          "how much longer a request has waited than one of the next higher priority to go first");
ABSL_FLAG(int, cpu_lanes, 0,
          "batches that the CPU computes at once; 0: one for every four threads, at least two");
ABSL_FLAG(int, cpu_threads, 0, "threads that compute on the CPU; 0: one for each core");
ABSL_FLAG(std::int64_t, pool_bytes, std::int64_t{256} << 20,
          "free memory kept for reuse, in bytes");
ABSL_FLAG(int, device_lanes, 10,
          "batches in flight on each CUDA device, each with device memory for the larger of "
          "max_request_bytes and max_batch_bytes");
ABSL_FLAG(int, device_small_lanes, 4,
          "how many of them compute small batches (of up to 2 MiB, through the link) at once: more "
          "take the cores from the threads that receive and send; 0: all");
ABSL_FLAG(
    absl::Duration, device_look_out, absl::Milliseconds(2),
    "how long one lane of CUDA devices stays awake after its work, looking out for more, such "
    "as 500us; 0: every lane sleeps at once");
ABSL_FLAG(
    std::int64_t, device_staging_bytes, 0,
    "page-locked host memory through which the lanes of each CUDA device gather large inputs, "
    "in bytes; 0: 16 MiB for each lane, with several devices 6 MiB");
ABSL_FLAG(std::int64_t, pinned_pool_bytes, std::int64_t{512} << 20,
          "page-locked host memory for the responses of each CUDA device, in bytes");
ABSL_FLAG(std::int64_t, max_parameter_bytes, std::int64_t{4} << 30,
          "largest params.safetensors, in bytes");
ABSL_FLAG(std::int64_t, max_models, 10000, "model versions that are loaded at once");
ABSL_FLAG(absl::Duration, lame_duck, absl::Seconds(2),
          "how long to go on serving after SIGTERM, with health NOT_SERVING, such as 5s");
ABSL_FLAG(absl::Duration, drain_timeout, absl::Seconds(30),
          "how long accepted requests may take to finish after that, such as 30s");
ABSL_FLAG(
    absl::Duration, metrics_timeout, absl::Seconds(10),
    "how long a request to the metrics port may take to arrive, and its response to be taken, "
    "each as a whole, such as 5s");
ABSL_FLAG(
    std::int64_t, max_metrics_connections, 64,
    "connections to the metrics port; one peer may have a quarter of them; beyond, the oldest "
    "of whoever has most makes room");
ABSL_FLAG(std::int64_t, max_model_series, 1000,
          "loaded model versions that have series of their own in /metrics; more are counted "
          "together under model=\"_other\"");
ABSL_FLAG(std::string, log_level, "info", "trace, debug, info, warning, error or off");
ABSL_FLAG(
    absl::Duration, slow_request_threshold, absl::ZeroDuration(),
    "log a JSON line for each Normalize and each stream that took so long, such as 100ms; 0: none");
ABSL_FLAG(std::int64_t, log_sample_every, 0,
          "log a JSON line for one in so many Normalize calls and streams; 0: none");

namespace normd {
namespace {

// abseil registers flags of its own; this file's are the server's.
bool IsOurs(const absl::CommandLineFlag& flag) {
  return absl::EndsWith(flag.Filename(), "server/config/flags.cc");
}

absl::CommandLineFlag* FindOurs(absl::string_view name) {
  absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name);
  return flag != nullptr && IsOurs(*flag) ? flag : nullptr;
}

ServerConfig ReadFlags() {
  ServerConfig config;
  config.model_repository = absl::GetFlag(FLAGS_model_repository);
  config.listen = absl::GetFlag(FLAGS_listen);
  config.metrics_listen = absl::GetFlag(FLAGS_metrics_listen);
  config.device = absl::GetFlag(FLAGS_device);
  config.max_request_bytes = absl::GetFlag(FLAGS_max_request_bytes);
  config.max_inflight_bytes = absl::GetFlag(FLAGS_max_inflight_bytes);
  config.max_connection_calls = absl::GetFlag(FLAGS_max_connection_calls);
  config.max_transport_bytes = absl::GetFlag(FLAGS_max_transport_bytes);
  config.max_connections = absl::GetFlag(FLAGS_max_connections);
  config.max_peer_connections = absl::GetFlag(FLAGS_max_peer_connections);
  config.handshake_timeout = absl::GetFlag(FLAGS_handshake_timeout);
  config.message_timeout = absl::GetFlag(FLAGS_message_timeout);
  config.min_message_rate = absl::GetFlag(FLAGS_min_message_rate);
  config.keepalive_time = absl::GetFlag(FLAGS_keepalive_time);
  config.keepalive_timeout = absl::GetFlag(FLAGS_keepalive_timeout);
  config.min_ping_interval = absl::GetFlag(FLAGS_min_ping_interval);
  config.max_connection_idle = absl::GetFlag(FLAGS_max_connection_idle);
  config.max_connection_age = absl::GetFlag(FLAGS_max_connection_age);
  config.max_connection_age_grace = absl::GetFlag(FLAGS_max_connection_age_grace);
  config.max_inflight_requests = absl::GetFlag(FLAGS_max_inflight_requests);
  config.stream_window_bytes = absl::GetFlag(FLAGS_stream_window_bytes);
  config.stream_idle_timeout = absl::GetFlag(FLAGS_stream_idle_timeout);
  config.response_timeout = absl::GetFlag(FLAGS_response_timeout);
  config.max_connection_share = absl::GetFlag(FLAGS_max_connection_share);
  config.max_peer_share = absl::GetFlag(FLAGS_max_peer_share);
  config.max_batch_rows = absl::GetFlag(FLAGS_max_batch_rows);
  config.max_batch_bytes = absl::GetFlag(FLAGS_max_batch_bytes);
  config.max_queue_delay = absl::GetFlag(FLAGS_max_queue_delay);
  config.max_queue_requests = absl::GetFlag(FLAGS_max_queue_requests);
  config.max_inline_bytes = absl::GetFlag(FLAGS_max_inline_bytes);
  config.priority_aging = absl::GetFlag(FLAGS_priority_aging);
  config.cpu_lanes = absl::GetFlag(FLAGS_cpu_lanes);
  config.cpu_threads = absl::GetFlag(FLAGS_cpu_threads);
  config.pool_bytes = absl::GetFlag(FLAGS_pool_bytes);
  config.device_lanes = absl::GetFlag(FLAGS_device_lanes);
  config.device_staging_bytes = absl::GetFlag(FLAGS_device_staging_bytes);
  config.device_small_lanes = absl::GetFlag(FLAGS_device_small_lanes);
  config.device_look_out = absl::GetFlag(FLAGS_device_look_out);
  config.pinned_pool_bytes = absl::GetFlag(FLAGS_pinned_pool_bytes);
  config.max_parameter_bytes = absl::GetFlag(FLAGS_max_parameter_bytes);
  config.max_models = absl::GetFlag(FLAGS_max_models);
  config.lame_duck = absl::GetFlag(FLAGS_lame_duck);
  config.drain_timeout = absl::GetFlag(FLAGS_drain_timeout);
  config.metrics_timeout = absl::GetFlag(FLAGS_metrics_timeout);
  config.max_metrics_connections = absl::GetFlag(FLAGS_max_metrics_connections);
  config.max_model_series = absl::GetFlag(FLAGS_max_model_series);
  config.log_level = absl::GetFlag(FLAGS_log_level);
  config.slow_request_threshold = absl::GetFlag(FLAGS_slow_request_threshold);
  config.log_sample_every = absl::GetFlag(FLAGS_log_sample_every);
  return config;
}

}  // namespace

absl::StatusOr<CommandLine> ParseCommandLine(absl::Span<const char* const> args) {
  CommandLine line;
  for (std::size_t i = 0; i < args.size(); ++i) {
    absl::string_view arg = args[i];
    if (arg.size() < 2 || !absl::ConsumePrefix(&arg, "-")) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", args[i], "\": wanted only flags, such as --listen=127.0.0.1:8001"));
    }
    absl::ConsumePrefix(&arg, "-");
    if (arg == "help" || arg == "h") {
      line.help = true;
      return line;
    }
    if (arg == "version") {
      line.version = true;
      return line;
    }
    const std::size_t equals = arg.find('=');
    const absl::string_view name = arg.substr(0, equals);
    absl::CommandLineFlag* flag = FindOurs(name);
    if (flag == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", name, ": no such flag (--help lists them)"));
    }
    absl::string_view value;
    if (equals != absl::string_view::npos) {
      value = arg.substr(equals + 1);
    } else if (++i < args.size()) {
      value = args[i];
    } else {
      return absl::InvalidArgumentError(absl::StrCat("--", name, ": no value"));
    }
    std::string error;
    if (!flag->ParseFrom(value, &error)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", name, ": \"", value, "\" cannot be read; ", flag->Help()));
    }
  }
  line.config = ReadFlags();
  absl::Status status = Validate(line.config);
  if (!status.ok()) return status;
  return line;
}

std::string FlagHelp() {
  std::vector<const absl::CommandLineFlag*> flags;
  for (const auto& [name, flag] : absl::GetAllFlags()) {
    if (IsOurs(*flag)) flags.push_back(flag);
  }
  std::sort(flags.begin(), flags.end(),
            [](const auto* a, const auto* b) { return a->Name() < b->Name(); });
  std::string help;
  for (const absl::CommandLineFlag* flag : flags) {
    absl::StrAppend(&help, "  --", flag->Name(), "=", flag->DefaultValue(), "\n      ",
                    flag->Help(), "\n");
  }
  return help;
}

}  // namespace normd
