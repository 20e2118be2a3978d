// The server's settings, as its flags give them.

#ifndef NORMD_SERVER_CONFIG_CONFIG_H_
#define NORMD_SERVER_CONFIG_CONFIG_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace normd {

// Plain values; flags.cc declares each one's flag: its default, unit, meaning and check.
struct ServerConfig {
  std::string model_repository;  // Folders, separated by commas.
  absl::Duration model_poll_interval;
  std::string listen;
  std::string http_listen;
  std::string http_allow_origin;
  std::string metrics_listen;
  std::string policy_file;
  std::string tokens_file;
  std::string admin;
  std::string admin_listen;
  std::string tls_cert;
  std::string tls_key;
  std::string tls_client_ca;
  std::string tls_client_auth;
  std::string tls_min_version;
  bool metrics_tls = false;
  bool insecure = false;
  std::string device;
  std::string shared_memory;
  std::string shared_memory_prefix;
  std::string shared_memory_listen;
  bool shared_memory_cuda = false;
  std::int64_t max_shared_regions = 0;
  std::int64_t max_shared_bytes = 0;
  std::int64_t max_identity_shared_regions = 0;
  std::int64_t max_identity_shared_bytes = 0;
  std::int64_t max_locked_shared_bytes = 0;
  std::int64_t max_identity_locked_shared_bytes = 0;
  std::int64_t max_request_bytes = 0;
  std::int64_t max_inflight_bytes = 0;
  std::int64_t max_inflight_requests = 0;
  int max_connection_calls = 0;
  std::int64_t max_metadata_bytes = 0;
  std::int64_t max_transport_bytes = 0;
  std::int64_t max_connections = 0;
  std::int64_t max_peer_connections = 0;
  absl::Duration handshake_timeout;
  absl::Duration message_timeout;
  std::int64_t min_message_rate = 0;
  absl::Duration keepalive_time;
  absl::Duration keepalive_timeout;
  absl::Duration min_ping_interval;
  absl::Duration max_connection_idle;
  absl::Duration max_connection_age;
  absl::Duration max_connection_age_grace;
  std::int64_t stream_window_bytes = 0;
  absl::Duration stream_idle_timeout;
  absl::Duration response_timeout;
  double max_connection_share = 0;
  double max_peer_share = 0;
  std::int64_t max_batch_rows = 0;
  std::int64_t max_batch_bytes = 0;
  absl::Duration max_queue_delay;
  std::int64_t max_queue_requests = 0;
  std::int64_t max_inline_bytes = 0;
  absl::Duration priority_aging;
  int cpu_lanes = 0;
  int cpu_threads = 0;
  std::int64_t pool_bytes = 0;
  int device_lanes = 0;
  int device_small_lanes = 0;
  std::int64_t device_staging_bytes = 0;
  absl::Duration device_spin_wait;
  std::int64_t pinned_pool_bytes = 0;
  std::int64_t max_parameter_bytes = 0;
  std::int64_t max_models = 0;
  bool allow_no_models = false;
  absl::Duration lame_duck;
  absl::Duration drain_timeout;
  absl::Duration metrics_timeout;
  std::int64_t max_metrics_connections = 0;
  std::int64_t max_model_series = 0;
  std::string log_level;
  std::string log_format;
  std::string log_file;
  absl::Duration slow_request_threshold;
  std::int64_t log_sample_every = 0;
};

// Whether "host:port" can be reached from this machine alone, as far as its host says so without
// being looked up: an address of loopback, localhost, or a unix socket.
bool IsLocal(const std::string& address);

// The folders of --model_repository, in their order.
std::vector<std::string> ModelFolders(const ServerConfig& config);

// An address at which others than this machine find a port that speaks no TLS.
struct OpenListener {
  const char* flag;  // "listen"
  std::string address;
};
// All of them, whether or not --insecure lets them be.
std::vector<OpenListener> ListenersInTheClear(const ServerConfig& config);

// Those of listen and http_listen at which others than this machine call, with commas between.
std::string WideAddresses(const ServerConfig& config);

// Where admin calls are taken, as --admin, --admin_listen and, where these do not say, the other
// flags have it: everywhere where a policy says who may make them, or where nobody beyond this
// machine can call; else nowhere.
enum class AdminPlace { kNowhere, kEverywhere, kAdminListener };
AdminPlace DecideAdminPlace(const ServerConfig& config);

// InvalidArgument names the first flag that is out of its range, what came and what is wanted.
absl::Status Validate(const ServerConfig& config);

struct CommandLine {
  bool help = false;     // --help: print FlagHelp and end.
  bool version = false;  // --version
  ServerConfig config;   // Validated, unless one of the above.
};

// Reads `args` (without the program's name). Takes
// --flag=value, --flag value and a single dash. InvalidArgument for a flag that is unknown or whose
// value cannot be read, for anything that is not a flag, and for what Validate refuses.
absl::StatusOr<CommandLine> ParseCommandLine(absl::Span<const char* const> args);

// A usage line, examples, and every flag with its unit, its meaning and its default.
std::string FlagHelp();

}  // namespace normd

#endif  // NORMD_SERVER_CONFIG_CONFIG_H_
