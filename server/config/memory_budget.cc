#include "server/config/memory_budget.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace normd {
namespace {

// Threads' stacks and heaps, parameters of models that are loaded later, and gRPC's overshoot.
constexpr std::int64_t kReserveBytes = std::int64_t{512} << 20;
constexpr std::int64_t kLeastBudgetBytes = std::int64_t{16} << 20;
constexpr std::int64_t kLeastWindowBytes = std::int64_t{1} << 16;
constexpr std::int64_t kDeviceRegionMappings = 2;

void Lower(const char* flag, std::int64_t& value, std::int64_t most, std::string& text) {
  if (value <= most) return;
  absl::StrAppend(&text, text.empty() ? "" : ", ", flag, " ", value, " -> ", most);
  value = most;
}

}  // namespace

std::string FitToMemory(ServerConfig& config, std::int64_t memory_left, bool may_lock_pages) {
  const std::int64_t reserve = std::min(kReserveBytes, memory_left / 2);
  const std::int64_t budget = std::max(memory_left - reserve, kLeastBudgetBytes);
  std::string text;
  // gRPC's messages hold the inputs in flight, so only outputs are added.
  const std::int64_t transport = budget / 2;
  const bool unlimited = config.max_transport_bytes == 0;
  constexpr std::int64_t kHuge = std::int64_t{1} << 50;
  if (!unlimited || transport < kHuge) {
    if (unlimited) config.max_transport_bytes = kHuge;
    Lower("--max_transport_bytes", config.max_transport_bytes, transport, text);
  }
  Lower("--max_inflight_bytes", config.max_inflight_bytes, budget / 8 * 3, text);
  Lower("--pool_bytes", config.pool_bytes, budget / 8, text);
  const std::int64_t request =
      std::min(config.max_inflight_bytes,
               config.max_transport_bytes > 0 ? config.max_transport_bytes : kHuge) /
      2;
  Lower("--max_request_bytes", config.max_request_bytes, request, text);
  Lower("--stream_window_bytes", config.stream_window_bytes,
        std::max(config.max_inflight_bytes / 2, kLeastWindowBytes), text);
  // The server pays for unwritten pages of a file once it locks them.
  if (config.shared_memory != "off" && may_lock_pages) {
    Lower("--max_locked_shared_bytes", config.max_locked_shared_bytes, budget / 8, text);
    Lower("--max_identity_locked_shared_bytes", config.max_identity_locked_shared_bytes,
          config.max_locked_shared_bytes, text);
  }
  return text;
}

std::string FitToMappings(ServerConfig& config, std::int64_t mappings_left) {
  if (config.shared_memory == "off" && !config.shared_memory_cuda) return "";
  // A host region is one mapping, even after the guard has replaced its memory. For a device region
  // the driver may cut a reserved range into three.
  const std::int64_t mappings = config.shared_memory_cuda ? kDeviceRegionMappings : 1;
  const std::int64_t most = std::max<std::int64_t>(mappings_left / 2 / mappings, 1);
  std::string text;
  Lower("--max_shared_regions", config.max_shared_regions, most, text);
  Lower("--max_identity_shared_regions", config.max_identity_shared_regions, most, text);
  return text;
}

}  // namespace normd
