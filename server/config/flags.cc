// The server's flags: each is declared here, with its default, its unit, its help and its check.

#include "server/config/flags.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "flags/flag_checks.h"

namespace normd {
namespace {

// The checks that are not in flags/flag_checks.h: each returns what it wants instead, or an empty
// string if the value is valid.

FlagCheck<absl::Duration> BeOffOrFrom10MsTo(absl::Duration high) {
  return [high](absl::Duration value) -> std::string {
    const bool is_off = value == absl::ZeroDuration();
    if (is_off || (value >= absl::Milliseconds(10) && value <= high)) return "";
    return absl::StrCat("0, or from 10ms to ", absl::FormatDuration(high));
  };
}

std::string BeFolders(const std::string& value) {
  if (value.empty()) return "a folder";
  std::vector<std::string> folders = absl::StrSplit(value, ',');
  std::sort(folders.begin(), folders.end());
  if (folders.front().empty()) return "folders separated by commas, none of them empty";
  const bool twice = std::adjacent_find(folders.begin(), folders.end()) != folders.end();
  return twice ? "each folder once" : "";
}

std::string BeAnAddress(const std::string& value) {
  const std::size_t colon = value.rfind(':');
  int port = -1;
  const bool is_address = colon != std::string::npos && colon != 0 &&
                          absl::SimpleAtoi(value.substr(colon + 1), &port) && port >= 0 &&
                          port <= 65535;
  return is_address ? "" : "host:port, such as 127.0.0.1:8001";
}

std::string BeALogLevel(const std::string& value) {
  for (const absl::string_view known : {"trace", "debug", "info", "warning", "error", "off"}) {
    if (value == known) return "";
  }
  return "trace, debug, info, warning, error or off";
}

std::string BeAListenAddress(const std::string& value) {
  if (absl::StartsWith(value, "unix:/") && value.back() != '/') return "";
  return BeAnAddress(value).empty() && !absl::StartsWith(value, "unix:")
             ? ""
             : "host:port, such as 127.0.0.1:8001, or unix:///path";
}

std::string BeListenAddresses(const std::string& value) {
  for (const absl::string_view address : absl::StrSplit(value, ',')) {
    const std::string wanted = BeAListenAddress(std::string(address));
    if (!wanted.empty()) return absl::StrCat(wanted, ", or several with commas between");
  }
  return "";
}

std::string BeOnOffOrAuto(const std::string& value) {
  return value == "on" || value == "off" || value == "auto" ? "" : "auto, on or off";
}

std::string BeAddressesOrNone(const std::string& value) {
  for (const absl::string_view address : absl::StrSplit(value, ',')) {
    const std::string wanted = value.empty() ? "" : BeAnAddress(std::string(address));
    if (!wanted.empty() || absl::StartsWith(address, "unix:")) {
      return "host:port, such as 127.0.0.1:8000, several with commas between, or none";
    }
  }
  return "";
}

std::string BeOriginsOrNone(const std::string& value) {
  if (value.empty() || value == "*") return "";
  for (const absl::string_view origin : absl::StrSplit(value, ',')) {
    const std::size_t scheme = origin.find("://");
    // It is compared with a header, so nothing may follow the port.
    if (scheme == absl::string_view::npos || scheme == 0 || scheme + 3 == origin.size() ||
        origin.find_first_of("/ *\r\n", scheme + 3) != absl::string_view::npos) {
      return "origins such as https://example.com with commas between, *, or none";
    }
  }
  return "";
}

std::string BeAnAddressOrNone(const std::string& value) {
  return value.empty() ? "" : BeAnAddress(value);
}

// Protobuf and gRPC count a message's bytes in 31 bits; a request has a little beside its tensor.
constexpr std::int64_t kMaxMessageBytes = std::numeric_limits<std::int32_t>::max() - 65536;
constexpr std::int64_t kKiB = std::int64_t{1} << 10;
constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr std::int64_t kGiB = std::int64_t{1} << 30;
constexpr std::int64_t kTiB = std::int64_t{1} << 40;

// The eleven flags that most servers need come first; the others follow by subject.
void AddFirst(FlagSet& flags, ServerConfig& c) {
  flags.Section("The first flags to know:");
  flags.Add("model_repository", &c.model_repository, "models", "DIRS",
            "Folders of models, separated by commas: <name>/config.textproto and "
            "<name>/<version>/params.safetensors. Each model lies in one of them.",
            BeFolders);
  flags.Add("listen", &c.listen, "127.0.0.1:8001", "ADDRESSES",
            "gRPC's addresses, separated by commas: host:port, where port 0 takes a free one, or "
            "unix:///path for a unix socket of this user.",
            BeListenAddresses);
  flags.Add("http_listen", &c.http_listen, "127.0.0.1:8000", "ADDRESSES",
            "HTTP's addresses, separated by commas: host:port, where port 0 takes a free one; "
            "empty: none.",
            BeAddressesOrNone);
  flags.Add("metrics_listen", &c.metrics_listen, "127.0.0.1:8002", "HOST:PORT",
            "Address of /metrics; port 0 takes a free one.", BeAnAddress);
  flags.Add("device", &c.device, "auto", "DEVICE",
            "auto (every CUDA device, else the CPU), cpu, cuda, or cuda:0,1.");
  flags.Add("tls_cert", &c.tls_cert, "", "FILE",
            "The server's certificate (PEM), then those between it and its authority. The files "
            "of tls_cert, tls_key and tls_client_ca are read again when they change.");
  flags.Add("tls_key", &c.tls_key, "", "FILE",
            "The certificate's key (PEM), without a passphrase, unreadable for others.");
  flags.Add("insecure", &c.insecure, false, "",
            "Allows addresses without TLS that other machines can reach.");
  flags.Add("policy_file", &c.policy_file, "", "FILE",
            "Identities and their roles (docs/security.md), read again when it changes; without "
            "it, everybody may infer and observe.");
  flags.AddBytes("max_request_bytes", &c.max_request_bytes, 256 * kMiB,
                 "Bytes of one request's inputs, and of its outputs; streams take more.",
                 From(1, kMaxMessageBytes));
  flags.Add("drain_timeout", &c.drain_timeout, absl::Seconds(30), "DURATION",
            "Time for accepted requests to finish after SIGTERM and lame_duck, such as 30s.",
            UpTo(absl::Hours(24)));
}

void AddAccess(FlagSet& flags, ServerConfig& c) {
  flags.Section("Access, beside policy_file:");
  flags.Add("tokens_file", &c.tokens_file, "", "FILE",
            "Digests of the policy's tokens, one line each, as `normctl token` prints them; read "
            "again when it changes.");
  flags.Add("admin", &c.admin, "auto", "WHEN",
            "Whether loads and unloads are accepted: on, off, or auto, which is on with a "
            "policy_file or while listen and http_listen are loopback addresses.",
            BeOnOffOrAuto);
  flags.Add("http_allow_origin", &c.http_allow_origin, "", "ORIGINS",
            "The web pages that may use HTTP, such as https://example.com, separated by commas; "
            "*: all; empty: none.",
            BeOriginsOrNone);
  flags.Add("admin_listen", &c.admin_listen, "", "HOST:PORT",
            "A second gRPC address, and then the only one that accepts loads and unloads; empty: "
            "none.",
            BeAnAddressOrNone);
}

void AddTls(FlagSet& flags, ServerConfig& c) {
  flags.Section("TLS, beside tls_cert and tls_key, for both ports:");
  flags.Add("tls_client_ca", &c.tls_client_ca, "", "FILE",
            "Authorities (PEM) that may sign clients' certificates.");
  flags.Add("tls_client_auth", &c.tls_client_auth, "auto", "WHEN",
            "Whether clients show a certificate: none, allow (verified if shown), require, or "
            "auto, which is require with tls_client_ca and none without.",
            BeOneOf({"auto", "none", "allow", "require"}));
  flags.Add("tls_min_version", &c.tls_min_version, "1.2", "VERSION", "1.2 or 1.3.",
            BeOneOf({"1.2", "1.3"}));
  flags.Add("metrics_tls", &c.metrics_tls, true, "",
            "The metrics port uses TLS too; with --metrics_tls=false only gRPC's port does.");
}

void AddBudgets(FlagSet& flags, ServerConfig& c) {
  flags.Section("Budgets, beside max_request_bytes:");
  flags.AddBytes("max_inflight_bytes", &c.max_inflight_bytes, kGiB,
                 "Inputs and outputs of all requests inside at once.", From(1));
  flags.Add("max_inflight_requests", &c.max_inflight_requests, 16384, "N",
            "Requests inside at once.", From(1));
  flags.Add("max_connection_calls", &c.max_connection_calls, 512, "N",
            "Requests of one connection inside at once, including each one of a stream of "
            "requests; idle streams, control and health calls do not count.",
            From(1, kMiB));
  flags.AddBytes("max_metadata_bytes", &c.max_metadata_bytes, 16 * kKiB,
                 "Metadata of one call, as HTTP/2 counts it: names, values and 32 bytes for each "
                 "entry.",
                 From(kKiB, kMiB));
  flags.AddBytes("max_transport_bytes", &c.max_transport_bytes, kGiB,
                 "Bytes of incomplete messages that gRPC may hold; below this limit, the address "
                 "with most of them already loses connections; 0: no limit.",
                 From(0));
  flags.Add("max_connection_share", &c.max_connection_share, 0.5, "SHARE",
            "One connection's part of max_inflight_bytes and of max_inflight_requests: this share "
            "of the free amount and its own together; 1: no limit, for a proxy in front.",
            BeAShare);
  flags.Add("max_peer_share", &c.max_peer_share, 0.75, "SHARE",
            "The same for all connections from one address (IPv6: from one /64 network).",
            BeAShare);
}

std::string BeAUnixSocketOrNone(const std::string& value) {
  const bool is_path = absl::StartsWith(value, "unix:/") && value.back() != '/';
  return value.empty() || is_path ? "" : "unix:///path";
}

std::string BeAFileName(const std::string& value) {
  const bool fits = value.size() <= 128 && value.find('/') == std::string::npos;
  return fits ? "" : "the beginning of a file's name, of at most 128 bytes and without a slash";
}

void AddSharedMemory(FlagSet& flags, ServerConfig& c) {
  flags.Section("Memory that clients share (docs/shared_memory.md):");
  flags.Add("shared_memory", &c.shared_memory, "off", "WHICH",
            "off; fd: memory whose descriptors clients pass at shared_memory_listen; or named: "
            "these, and files of /dev/shm that callers with admin rights register.",
            BeOneOf({"off", "fd", "named"}));
  flags.Add("shared_memory_listen", &c.shared_memory_listen, "", "ADDRESS",
            "unix:///path of the socket where clients of this user pass memory; empty: none.",
            BeAUnixSocketOrNone);
  flags.Add("shared_memory_prefix", &c.shared_memory_prefix, "", "NAME",
            "Required beginning of these files' names; empty: any name.", BeAFileName);
  flags.Add("shared_memory_cuda", &c.shared_memory_cuda, false, "",
            "Accepts memory of the server's devices, whose CUDA IPC handles callers with admin "
            "rights register.");
  flags.Add("max_shared_regions", &c.max_shared_regions, 1024, "N",
            "Regions mapped at once, at most half of the mappings that vm.max_map_count leaves.",
            From(1, 65536));
  flags.AddBytes(
      "max_shared_bytes", &c.max_shared_bytes, 64 * kGiB,
      "Bytes of these regions. The memory is the clients'; the server pays for page tables, "
      "2 KiB for each MiB.",
      From(1, 1024 * kTiB));
  flags.Add("max_identity_shared_regions", &c.max_identity_shared_regions, 256, "N",
            "Regions of one identity, or of all clients without a policy_file.", From(1, 65536));
  flags.AddBytes("max_identity_shared_bytes", &c.max_identity_shared_bytes, 32 * kGiB,
                 "Bytes of the regions of one identity.", From(1, 1024 * kTiB));
  flags.AddBytes(
      "max_locked_shared_bytes", &c.max_locked_shared_bytes, 8 * kGiB,
      "Bytes of regions whose pages are locked, so that devices read and write them directly; "
      "the rest is copied. 0: none.",
      From(0, 1024 * kTiB));
  flags.AddBytes("max_identity_locked_shared_bytes", &c.max_identity_locked_shared_bytes, 4 * kGiB,
                 "Locked bytes of one identity, or of all clients without a policy_file.",
                 From(0, 1024 * kTiB));
}

void AddConnections(FlagSet& flags, ServerConfig& c) {
  flags.Section("Connections:");
  flags.Add("max_connections", &c.max_connections, 0, "N",
            "Open connections of the gRPC port; further ones are closed at once; 0: as many as "
            "descriptors allow (two per connection), at most 10000.",
            From(0, kMiB));
  flags.Add("max_peer_connections", &c.max_peer_connections, 0, "N",
            "Connections of one address (IPv6: of one /64 network); 0: three quarters.",
            From(0, kMiB));
  flags.Add("handshake_timeout", &c.handshake_timeout, absl::Seconds(10), "DURATION",
            "Time for a client to begin HTTP/2 and to acknowledge the server's settings, with TLS "
            "for its hello and again for the rest, such as 5s; 0: no limit.",
            UpTo(absl::Hours(1)));
  flags.Add("message_timeout", &c.message_timeout, absl::Seconds(30), "DURATION",
            "Time after which an incomplete message that arrives at less than min_message_rate "
            "ends its connection, such as 10s; 0: no limit.",
            UpTo(absl::Hours(24)));
  flags.AddBytes("min_message_rate", &c.min_message_rate, 4096,
                 "Least bytes per second of an incomplete message.", From(1, kTiB));
  flags.Add("keepalive_time", &c.keepalive_time, absl::Minutes(1), "DURATION",
            "Silence of a connection after which the server pings its client, such as 30s; "
            "0: never.",
            UpTo(absl::Hours(24)));
  flags.Add("keepalive_timeout", &c.keepalive_timeout, absl::Seconds(20), "DURATION",
            "Time for the response to that ping, after which the connection is ended, such as 10s.",
            UpTo(absl::Hours(1)));
  flags.Add("min_ping_interval", &c.min_ping_interval, absl::Seconds(10), "DURATION",
            "Least time between a client's pings without data from the server between them, such "
            "as 1m; a client that pings more often is disconnected.",
            UpTo(absl::Hours(24)));
  flags.Add("max_connection_idle", &c.max_connection_idle, absl::Hours(1), "DURATION",
            "Time without a call after which a connection is closed, such as 10m; 0: no limit.",
            UpTo(absl::Hours(480)));
  flags.Add("max_connection_age", &c.max_connection_age, absl::ZeroDuration(), "DURATION",
            "Age at which the server asks a connection's client to make a new one, such as 1h; "
            "0: no limit.",
            UpTo(absl::Hours(480)));
  flags.Add("max_connection_age_grace", &c.max_connection_age_grace, absl::ZeroDuration(),
            "DURATION", "Time for its calls to finish then, such as 5m; 0: no limit.",
            UpTo(absl::Hours(480)));
}

void AddStreams(FlagSet& flags, ServerConfig& c) {
  flags.Section("Streams and slow clients:");
  flags.AddBytes("stream_window_bytes", &c.stream_window_bytes, 32 * kMiB,
                 "Bytes of one stream's inputs that the server holds at once; a row may have three "
                 "quarters of them.",
                 From(64 * kKiB, kTiB));
  flags.Add("stream_idle_timeout", &c.stream_idle_timeout, absl::Minutes(1), "DURATION",
            "Time after which a stream ends whose client does not send when it is its turn, or "
            "does not take a message, such as 10s; 0: no limit.",
            UpTo(absl::Hours(24)));
  flags.Add("response_timeout", &c.response_timeout, absl::Minutes(1), "DURATION",
            "Time for a client to take a response, such as 10s, beside a second for each MiB; "
            "0: no limit.",
            UpTo(absl::Hours(24)));
}

void AddBatching(FlagSet& flags, ServerConfig& c) {
  flags.Section("Queue and batches:");
  flags.Add("max_batch_rows", &c.max_batch_rows, kMiB, "N",
            "Rows of one batch (a larger request is a batch by itself).", From(1));
  flags.AddBytes("max_batch_bytes", &c.max_batch_bytes, 0,
                 "Input bytes of one batch; 0: 256 KiB for the CPU, 2 MiB for CUDA.",
                 From(0, kTiB));
  flags.Add("max_queue_delay", &c.max_queue_delay, absl::ZeroDuration(), "DURATION",
            "Time that a free lane leaves the oldest request waiting for others, such as 200us; "
            "at most three quarters of the time that a request may wait.",
            UpTo(absl::Minutes(1)));
  flags.Add("max_queue_requests", &c.max_queue_requests, 1024, "N",
            "Requests that wait for one model version.", From(1));
  flags.AddBytes(
      "max_inline_bytes", &c.max_inline_bytes, kMiB,
      "Largest tensor that the receiving thread computes itself when nothing waits; with CUDA "
      "at most 256 KiB; 0: every request goes to a lane.",
      From(0));
  flags.Add(
      "priority_aging", &c.priority_aging, absl::Seconds(1), "DURATION",
      "Additional waiting time with which a request overtakes its caller's of the next higher "
      "priority.",
      UpTo(absl::Hours(1)));
}

void AddCpu(FlagSet& flags, ServerConfig& c) {
  flags.Section("The CPU:");
  flags.Add("cpu_lanes", &c.cpu_lanes, 0, "N",
            "Batches that the CPU computes at once; 0: one for every four threads, at least two.",
            From(0, 1024));
  flags.Add(
      "cpu_threads", &c.cpu_threads, 0, "N",
      "Threads that compute on the CPU; 0: one for each core, or as many as the control group's "
      "quota allows.",
      From(0, 4096));
  flags.AddBytes("pool_bytes", &c.pool_bytes, 256 * kMiB, "Free memory kept for reuse.", From(0));
}

void AddDevices(FlagSet& flags, ServerConfig& c) {
  flags.Section("CUDA devices:");
  flags.Add("device_lanes", &c.device_lanes, 10, "N",
            "Batches in flight on each device, each with device memory for the larger of "
            "max_request_bytes and max_batch_bytes.",
            From(1, 64));
  flags.Add("device_small_lanes", &c.device_small_lanes, 4, "N",
            "Lanes of a device that may compute small batches (up to 2 MiB, through the link) at "
            "once: more would take the cores from the threads that receive and send; 0: all.",
            From(0, 64));
  flags.AddBytes(
      "device_staging_bytes", &c.device_staging_bytes, 0,
      "Page-locked host memory through which the lanes of each device gather large inputs; "
      "0: 16 MiB for each lane, with several devices 6 MiB.",
      From(0));
  flags.Add("device_spin_wait", &c.device_spin_wait, absl::Milliseconds(2), "DURATION",
            "Time that one lane of the devices spins for more work before it sleeps, such as "
            "500us; 0: every lane sleeps at once.",
            UpTo(absl::Seconds(1)));
  flags.AddBytes("pinned_pool_bytes", &c.pinned_pool_bytes, 512 * kMiB,
                 "Page-locked host memory for the responses of each device.", From(0, kTiB));
}

void AddModels(FlagSet& flags, ServerConfig& c) {
  flags.Section("Models:");
  flags.Add("model_poll_interval", &c.model_poll_interval, absl::ZeroDuration(), "DURATION",
            "How often to look whether model_repository has changed, such as 10s: versions that "
            "come are loaded, versions that go are unloaded, as version_policy in the model's "
            "config has it; 0: only LoadModel and SIGHUP look.",
            BeOffOrFrom10MsTo(absl::Hours(24)));
  flags.AddBytes("max_parameter_bytes", &c.max_parameter_bytes, 4 * kGiB,
                 "Largest params.safetensors.", From(1));
  flags.Add("max_models", &c.max_models, 10000, "N", "Model versions that are loaded at once.",
            From(1));
  flags.Add("allow_no_models", &c.allow_no_models, false, "",
            "Lets the server be ready while no model is loaded, as one whose models come by "
            "LoadModel.");
}

void AddStop(FlagSet& flags, ServerConfig& c) {
  flags.Section("The stop, beside drain_timeout:");
  flags.Add("lame_duck", &c.lame_duck, absl::Seconds(2), "DURATION",
            "Time to keep serving after SIGTERM, with health NOT_SERVING, such as 5s.",
            UpTo(absl::Hours(1)));
}

void AddObservability(FlagSet& flags, ServerConfig& c) {
  flags.Section("Metrics and logs:");
  flags.Add("metrics_timeout", &c.metrics_timeout, absl::Seconds(10), "DURATION",
            "Time for a whole request to the metrics port to arrive, and for its whole response "
            "to be taken, such as 5s.",
            FromTime(absl::Milliseconds(1), absl::Hours(1)));
  flags.Add("max_metrics_connections", &c.max_metrics_connections, 64, "N",
            "Connections to the metrics port; one peer may have a quarter of them. Beyond the "
            "limit, the oldest connection of the peer with most of them is closed.",
            From(1, 4096));
  flags.Add("max_model_series", &c.max_model_series, 1000, "N",
            "Loaded model versions with their own series in /metrics; further ones are counted "
            "together under model=\"_other\".",
            From(0, kMiB));
  flags.Add("log_level", &c.log_level, "info", "LEVEL",
            "trace, debug, info, warning, error or off.", BeALogLevel);
  flags.Add("log_format", &c.log_format, "text", "FORMAT",
            "How the log's lines look: text or json, both with the time in UTC.",
            BeOneOf({"text", "json"}));
  flags.Add("log_file", &c.log_file, "", "FILE",
            "Where the log goes, with its JSON lines, opened again on SIGHUP; empty: stderr.");
  flags.Add("slow_request_threshold", &c.slow_request_threshold, absl::ZeroDuration(), "DURATION",
            "Logs a JSON line for each Normalize and each stream that took at least this long, "
            "such as 100ms; 0: none.",
            UpTo(absl::Hours(1)));
  flags.Add("log_sample_every", &c.log_sample_every, 0, "N",
            "Logs a JSON line for one in this many Normalize calls and streams; 0: none.", From(0));
}

}  // namespace

FlagSet ServerFlags(ServerConfig& config) {
  FlagSet flags;
  AddFirst(flags, config);
  AddAccess(flags, config);
  AddTls(flags, config);
  AddBudgets(flags, config);
  AddSharedMemory(flags, config);
  AddConnections(flags, config);
  AddStreams(flags, config);
  AddBatching(flags, config);
  AddCpu(flags, config);
  AddDevices(flags, config);
  AddModels(flags, config);
  AddStop(flags, config);
  AddObservability(flags, config);
  return flags;
}

}  // namespace normd
