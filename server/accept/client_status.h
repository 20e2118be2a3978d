// A call's errors, and the errors that its client gets.

#ifndef NORMD_SERVER_ACCEPT_CLIENT_STATUS_H_
#define NORMD_SERVER_ACCEPT_CLIENT_STATUS_H_

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace normd {

// `status` as the client sees it. INTERNAL and UNKNOWN are our own faults: their message goes to
// the log, with the `request_id` if there is one, and the client gets INTERNAL with a general
// message. A time for another attempt (base/retry_after.h) is kept.
absl::Status ForClient(const absl::Status& status, absl::string_view request_id);

// Runs `body` and turns what it throws into a status: std::bad_alloc into ResourceExhausted,
// anything else into Internal.
absl::Status CatchAll(absl::FunctionRef<absl::Status()> body);

}  // namespace normd

#endif  // NORMD_SERVER_ACCEPT_CLIENT_STATUS_H_
