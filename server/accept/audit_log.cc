#include "server/accept/audit_log.h"

#include <exception>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/printable.h"
#include "nlohmann/json.hpp"
#include "spdlog/spdlog.h"

namespace normd {
namespace {

constexpr Rate kLines{10, 100};
constexpr std::size_t kMaxTextBytes = 128;

}  // namespace

void AuditLog::Write(const AuditRecord& record) noexcept {
  try {
    const auto event = static_cast<std::size_t>(record.event);
    if (limits_[event].Take(kLines, clock_.Now()) > Duration(0)) {
      left_out_[event].fetch_add(1, std::memory_order_relaxed);
      return;
    }
    nlohmann::ordered_json line;
    line["time"] = absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", absl::Now(), absl::UTCTimeZone());
    line["audit"] = record.event == AuditRecord::Event::kAdminCall ? "admin" : "denied";
    line["identity"] = std::string(record.identity);
    line["right"] = std::string(record.right);
    line["method"] = std::string(record.method);
    // A client may have sent any bytes.
    line["model"] = Printable(record.model, kMaxTextBytes);
    line["peer"] = std::string(record.peer);
    if (!record.request_id.empty()) line["request_id"] = std::string(record.request_id);
    line["code"] = absl::StatusCodeToString(record.code);
    const std::int64_t left_out = left_out_[event].exchange(0, std::memory_order_relaxed);
    if (left_out > 0) line["left_out_before"] = left_out;
    // Replaces bytes that are not UTF-8; the default would throw.
    write_line_(line.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace));
  } catch (const std::exception& error) {
    spdlog::warn("audit log: a line is missing: {}", error.what());
  }
}

}  // namespace normd
