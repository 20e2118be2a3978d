#include "base/retry_after.h"

#include <cstdint>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace normd {
namespace {

// The key of a status payload: nanoseconds in decimal.
constexpr char kRetryAfter[] = "normd/retry-after-ns";

}  // namespace

void SetRetryAfter(Duration after, absl::Status& status) {
  status.SetPayload(kRetryAfter, absl::Cord(absl::StrCat(after.count())));
}

std::optional<Duration> RetryAfterOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kRetryAfter);
  std::int64_t ns = 0;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &ns)) return std::nullopt;
  return Duration(ns);
}

}  // namespace normd
