// One JSON line for each admin call and for each denial.

#ifndef NORMD_SERVER_ACCEPT_AUDIT_LOG_H_
#define NORMD_SERVER_ACCEPT_AUDIT_LOG_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "server/identity/rate_limit.h"

namespace normd {

// Borrows; only read during Write.
struct AuditRecord {
  enum class Event { kAdminCall, kDenied };

  Event event = Event::kDenied;
  absl::string_view identity;  // Empty: nobody's.
  absl::string_view right;
  absl::string_view method;
  absl::string_view model;  // As sent; empty if the call names none, or was not read.
  absl::string_view peer;
  absl::string_view request_id;
  absl::StatusCode code = absl::StatusCode::kOk;
};

// A flood of calls costs the log at most 10 lines a second of each kind, after the first 100. Admin
// calls and denials have separate bounds, so neither hides the other. The next line of a kind says
// how many were left out. Thread-safe.
class AuditLog {
 public:
  using WriteLine = std::function<void(const std::string& line)>;

  // `write_line` gets a line without its end, on any thread, and must not block. `clock` outlives
  // it.
  AuditLog(const Clock& clock, WriteLine write_line)
      : clock_(clock), write_line_(std::move(write_line)) {}

  // docs/security.md describes the line. Never throws: a line that cannot be made is left out.
  void Write(const AuditRecord& record) noexcept;

 private:
  static constexpr std::size_t kEvents = 2;

  const Clock& clock_;
  const WriteLine write_line_;
  std::array<RateLimit, kEvents> limits_;
  // Relaxed: counts that order nothing.
  std::array<std::atomic<std::int64_t>, kEvents> left_out_{};
};

}  // namespace normd

#endif  // NORMD_SERVER_ACCEPT_AUDIT_LOG_H_
