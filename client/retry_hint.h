// A server's hint when to retry a refused call: `grpc-retry-pushback-ms` in a response's trailing
// metadata, carried by the status.
// Source: https://github.com/grpc/proposal/blob/master/A6-client-retries.md, "Pushback".

#ifndef NORMD_CLIENT_RETRY_HINT_H_
#define NORMD_CLIENT_RETRY_HINT_H_

#include <optional>

#include "absl/status/status.h"
#include "base/clock.h"
#include "grpcpp/client_context.h"

namespace normd::client {

// Whether, and after what time, to retry a call.
struct RetryHint {
  bool retry = true;
  Duration after{0};
};

// Copies the hint of a finished call into its status. A value that is not a number means "not at
// all", as in the source; without a hint the status does not change.
void SetRetryHint(const grpc::ClientContext& context, absl::Status& status);
std::optional<RetryHint> RetryHintOf(const absl::Status& status);

}  // namespace normd::client

#endif  // NORMD_CLIENT_RETRY_HINT_H_
