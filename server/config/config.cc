#include "server/config/config.h"

#include <limits>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace normd {
namespace {

// Protobuf and gRPC count a message's bytes in 31 bits; a request has a little beside its tensor.
constexpr std::int64_t kMaxMessageBytes = std::numeric_limits<std::int32_t>::max() - 65536;
constexpr std::int64_t kUnbounded = std::numeric_limits<std::int64_t>::max();

absl::Status Wanted(absl::string_view flag, absl::string_view got, absl::string_view wanted) {
  return absl::InvalidArgumentError(absl::StrCat("--", flag, ": ", got, ", wanted ", wanted));
}

absl::Status CheckRange(absl::string_view flag, std::int64_t value, std::int64_t low,
                        std::int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  if (high == kUnbounded) return Wanted(flag, absl::StrCat(value), absl::StrCat("at least ", low));
  return Wanted(flag, absl::StrCat(value), absl::StrCat("from ", low, " to ", high));
}

absl::Status CheckDuration(absl::string_view flag, absl::Duration value, absl::Duration high) {
  if (value >= absl::ZeroDuration() && value <= high) return absl::OkStatus();
  return Wanted(flag, absl::FormatDuration(value),
                absl::StrCat("from 0 to ", absl::FormatDuration(high)));
}

// A duration that is not without end.
absl::Status CheckTimeout(absl::string_view flag, absl::Duration value, absl::Duration high) {
  if (value >= absl::Milliseconds(1) && value <= high) return absl::OkStatus();
  return Wanted(flag, absl::FormatDuration(value),
                absl::StrCat("from 1ms to ", absl::FormatDuration(high)));
}

absl::Status CheckShare(absl::string_view flag, double value) {
  if (value > 0 && value <= 1) return absl::OkStatus();
  return Wanted(flag, absl::StrCat(value), "above 0, at most 1");
}

absl::Status CheckAddress(absl::string_view flag, absl::string_view address) {
  const std::size_t colon = address.rfind(':');
  int port = -1;
  if (colon == absl::string_view::npos || colon == 0 ||
      !absl::SimpleAtoi(address.substr(colon + 1), &port) || port < 0 || port > 65535) {
    return Wanted(flag, absl::StrCat("\"", address, "\""), "host:port, such as 127.0.0.1:8001");
  }
  return absl::OkStatus();
}

absl::Status CheckLogLevel(absl::string_view level) {
  for (const absl::string_view known : {"trace", "debug", "info", "warning", "error", "off"}) {
    if (level == known) return absl::OkStatus();
  }
  return Wanted("log_level", absl::StrCat("\"", level, "\""),
                "trace, debug, info, warning, error or off");
}

}  // namespace

absl::Status Validate(const ServerConfig& c) {
  if (c.model_repository.empty()) return Wanted("model_repository", "empty", "a folder");
  for (absl::Status status : {
           CheckAddress("listen", c.listen),
           CheckAddress("metrics_listen", c.metrics_listen),
           CheckRange("max_request_bytes", c.max_request_bytes, 1, kMaxMessageBytes),
           CheckRange("max_inflight_bytes", c.max_inflight_bytes, 1, kUnbounded),
           CheckRange("max_inflight_requests", c.max_inflight_requests, 1, kUnbounded),
           CheckRange("max_connection_calls", c.max_connection_calls, 0, 1 << 20),
           CheckRange("max_transport_bytes", c.max_transport_bytes, 0, kUnbounded),
           CheckRange("max_connections", c.max_connections, 0, 1 << 20),
           CheckRange("max_peer_connections", c.max_peer_connections, 0, 1 << 20),
           CheckDuration("handshake_timeout", c.handshake_timeout, absl::Hours(1)),
           CheckDuration("message_timeout", c.message_timeout, absl::Hours(24)),
           CheckRange("min_message_rate", c.min_message_rate, 1, std::int64_t{1} << 40),
           CheckDuration("keepalive_time", c.keepalive_time, absl::Hours(24)),
           CheckDuration("keepalive_timeout", c.keepalive_timeout, absl::Hours(1)),
           CheckDuration("min_ping_interval", c.min_ping_interval, absl::Hours(24)),
           CheckDuration("max_connection_idle", c.max_connection_idle, absl::Hours(480)),
           CheckDuration("max_connection_age", c.max_connection_age, absl::Hours(480)),
           CheckDuration("max_connection_age_grace", c.max_connection_age_grace, absl::Hours(480)),
           CheckRange("stream_window_bytes", c.stream_window_bytes, 1 << 16, std::int64_t{1} << 40),
           CheckDuration("stream_idle_timeout", c.stream_idle_timeout, absl::Hours(24)),
           CheckDuration("response_timeout", c.response_timeout, absl::Hours(24)),
           CheckShare("max_connection_share", c.max_connection_share),
           CheckShare("max_peer_share", c.max_peer_share),
           CheckRange("max_batch_rows", c.max_batch_rows, 1, kUnbounded),
           CheckRange("max_batch_bytes", c.max_batch_bytes, 0, std::int64_t{1} << 40),
           CheckDuration("max_queue_delay", c.max_queue_delay, absl::Minutes(1)),
           CheckRange("max_queue_requests", c.max_queue_requests, 1, kUnbounded),
           CheckRange("max_inline_bytes", c.max_inline_bytes, 0, kUnbounded),
           CheckDuration("priority_aging", c.priority_aging, absl::Hours(1)),
           CheckRange("cpu_lanes", c.cpu_lanes, 0, 1024),
           CheckRange("cpu_threads", c.cpu_threads, 0, 4096),
           CheckRange("pool_bytes", c.pool_bytes, 0, kUnbounded),
           CheckRange("device_lanes", c.device_lanes, 1, 64),
           CheckRange("device_small_lanes", c.device_small_lanes, 0, 64),
           CheckRange("device_staging_bytes", c.device_staging_bytes, 0, kUnbounded),
           CheckDuration("device_look_out", c.device_look_out, absl::Seconds(1)),
           CheckRange("pinned_pool_bytes", c.pinned_pool_bytes, 0, std::int64_t{1} << 40),
           CheckRange("max_parameter_bytes", c.max_parameter_bytes, 1, kUnbounded),
           CheckRange("max_models", c.max_models, 1, kUnbounded),
           CheckDuration("lame_duck", c.lame_duck, absl::Hours(1)),
           CheckDuration("drain_timeout", c.drain_timeout, absl::Hours(24)),
           CheckTimeout("metrics_timeout", c.metrics_timeout, absl::Hours(1)),
           CheckRange("max_metrics_connections", c.max_metrics_connections, 1, 4096),
           CheckRange("max_model_series", c.max_model_series, 0, 1 << 20),
           CheckLogLevel(c.log_level),
           CheckDuration("slow_request_threshold", c.slow_request_threshold, absl::Hours(1)),
           CheckRange("log_sample_every", c.log_sample_every, 0, kUnbounded),
       }) {
    if (!status.ok()) return status;
  }
  // A request counts its input and its output.
  if (c.max_inflight_bytes / 2 < c.max_request_bytes) {
    return Wanted("max_inflight_bytes", absl::StrCat(c.max_inflight_bytes),
                  absl::StrCat("at least twice --max_request_bytes, ", c.max_request_bytes));
  }
  if (c.max_inflight_bytes / 2 < c.stream_window_bytes) {
    return Wanted("max_inflight_bytes", absl::StrCat(c.max_inflight_bytes),
                  absl::StrCat("at least twice --stream_window_bytes, ", c.stream_window_bytes));
  }
  // The largest message must fit, on its way in and out.
  if (c.max_transport_bytes > 0 && c.max_transport_bytes / 2 < c.max_request_bytes) {
    return Wanted("max_transport_bytes", absl::StrCat(c.max_transport_bytes),
                  absl::StrCat("0, or at least twice --max_request_bytes, ", c.max_request_bytes));
  }
  return absl::OkStatus();
}

}  // namespace normd
