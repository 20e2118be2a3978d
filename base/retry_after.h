// When a failed call is worth another attempt, carried by its status.

#ifndef NORMD_BASE_RETRY_AFTER_H_
#define NORMD_BASE_RETRY_AFTER_H_

#include <optional>

#include "absl/status/status.h"
#include "base/clock.h"

namespace normd {

// The call may succeed unchanged after this time, here or elsewhere. No effect on an OK status.
void SetRetryAfter(Duration after, absl::Status& status);
// The time that SetRetryAfter has set; nullopt if it was not called.
std::optional<Duration> RetryAfterOf(const absl::Status& status);

}  // namespace normd

#endif  // NORMD_BASE_RETRY_AFTER_H_
