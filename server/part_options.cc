#include "server/part_options.h"

#include <algorithm>
#include <cstddef>
#include <string>

#include "absl/time/time.h"

namespace normd {
namespace {

// A device is launched once for a batch, so it needs larger ones. Company only saves both the cost
// of one call of the kernels; a large batch would keep its requests from the other lanes, and leave
// the caches or the path through the link.
constexpr std::int64_t kCpuBatchBytes = std::int64_t{256} << 10;
constexpr std::int64_t kDeviceBatchBytes = std::int64_t{2} << 20;

// A device's copies and launches cost less the fewer there are.
constexpr std::int64_t kDevicePieceBytes = std::int64_t{4} << 20;

ConnectionOptions ConnectionsOf(const ServerConfig& config) {
  ConnectionOptions options;
  options.max_connections = config.max_connections;
  options.max_peer_connections = config.max_peer_connections;
  options.handshake_timeout = absl::ToChronoNanoseconds(config.handshake_timeout);
  options.message_timeout = absl::ToChronoNanoseconds(config.message_timeout);
  options.min_bytes_per_second = config.min_message_rate;
  options.keepalive_time = absl::ToChronoNanoseconds(config.keepalive_time);
  options.keepalive_timeout = absl::ToChronoNanoseconds(config.keepalive_timeout);
  options.min_ping_interval = absl::ToChronoNanoseconds(config.min_ping_interval);
  options.max_idle = absl::ToChronoNanoseconds(config.max_connection_idle);
  options.max_age = absl::ToChronoNanoseconds(config.max_connection_age);
  options.max_age_grace = absl::ToChronoNanoseconds(config.max_connection_age_grace);
  return options;
}

}  // namespace

BackendOptions BackendOf(const ServerConfig& config) {
  BackendOptions options;
  options.device = config.device;
  options.cpu_lanes = config.cpu_lanes;
  options.cpu_threads = config.cpu_threads;
  options.pool_bytes = config.pool_bytes;
  options.device_lanes = config.device_lanes;
  options.max_inline_bytes = std::min(config.max_inline_bytes, kMaxDeviceInlineBytes);
  options.pinned_pool_bytes = config.pinned_pool_bytes;
  options.device_staging_bytes = config.device_staging_bytes;
  options.device_batch_bytes = std::max(config.max_batch_bytes, config.max_request_bytes);
  options.device_shared_memory = config.shared_memory_cuda;
  return options;
}

BatchQueueOptions QueueOf(const ServerConfig& config, bool on_cpu) {
  BatchQueueOptions options;
  options.limits.max_rows = config.max_batch_rows;
  options.limits.max_bytes = config.max_batch_bytes > 0 ? config.max_batch_bytes
                             : on_cpu                   ? kCpuBatchBytes
                                                        : kDeviceBatchBytes;
  options.limits.max_queue_delay = absl::ToChronoNanoseconds(config.max_queue_delay);
  options.max_queue_requests = config.max_queue_requests;
  options.max_inline_bytes =
      on_cpu ? config.max_inline_bytes : std::min(config.max_inline_bytes, kMaxDeviceInlineBytes);
  options.priority_aging = absl::ToChronoNanoseconds(config.priority_aging);
  if (!on_cpu) options.spin_wait = absl::ToChronoNanoseconds(config.device_spin_wait);
  return options;
}

AcceptLimits LimitsOf(const ServerConfig& config, bool on_cpu) {
  AcceptLimits limits;
  limits.max_request_bytes = config.max_request_bytes;
  limits.max_metadata_bytes = config.max_metadata_bytes;
  limits.stream.window_bytes = config.stream_window_bytes;
  if (!on_cpu) limits.stream.piece_bytes = kDevicePieceBytes;
  return limits;
}

CallOptions CallsOf(const ServerConfig& config) {
  CallOptions options;
  options.stream_idle_timeout = absl::ToChronoNanoseconds(config.stream_idle_timeout);
  options.response_timeout = absl::ToChronoNanoseconds(config.response_timeout);
  return options;
}

WithoutModels WithoutModelsOf(const ServerConfig& config) {
  return config.allow_no_models ? WithoutModels::kReady : WithoutModels::kNotReady;
}

RegistryOptions RegistryOf(const ServerConfig& config, Readiness& readiness) {
  RegistryOptions options;
  options.roots = ModelFolders(config);
  options.max_parameter_bytes = config.max_parameter_bytes;
  options.max_models = config.max_models;
  options.on_change = [&readiness](const std::string& model, bool loaded) {
    readiness.SetModel(model, loaded);
  };
  return options;
}

AdmissionLimits AdmissionOf(const ServerConfig& config) {
  AdmissionLimits limits;
  limits.max_inflight_bytes = config.max_inflight_bytes;
  limits.max_inflight_requests = config.max_inflight_requests;
  limits.max_connection_share = config.max_connection_share;
  limits.max_connection_calls = config.max_connection_calls;
  limits.max_peer_share = config.max_peer_share;
  limits.overdraft_bytes = 2 * config.stream_window_bytes;
  return limits;
}

ServerOptions ServingOf(const ServerConfig& config, const CertificateStore* tls,
                        std::int64_t reserved_descriptors) {
  return {config.listen,
          config.max_request_bytes,
          config.max_connection_calls,
          config.max_transport_bytes,
          config.max_inflight_bytes,
          ConnectionsOf(config),
          config.admin_listen,
          tls,
          reserved_descriptors};
}

RestOptions RestOf(const ServerConfig& config, const CertificateStore* tls) {
  const ConnectionOptions connections = ConnectionsOf(config);
  RestOptions options;
  options.listen = config.http_listen;
  options.allow_origin = config.http_allow_origin;
  options.max_connections = connections.max_connections;
  options.max_peer_connections = connections.max_peer_connections;
  options.max_head_bytes = static_cast<std::size_t>(config.max_metadata_bytes);
  options.handshake_timeout = connections.handshake_timeout;
  options.message_timeout = connections.message_timeout;
  options.min_bytes_per_second = connections.min_bytes_per_second;
  options.response_timeout = absl::ToChronoNanoseconds(config.response_timeout);
  options.pooled_bytes = std::min(options.pooled_bytes, config.pool_bytes);
  options.max_idle = connections.max_idle;
  options.max_age = connections.max_age;
  if (tls != nullptr) options.tls = [tls] { return tls->current()->context; };
  return options;
}

}  // namespace normd
