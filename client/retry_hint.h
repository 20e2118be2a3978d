// When a server wants a refused call again: `grpc-retry-pushback-ms` in a response's trailing
// metadata, carried by the status.
// Source: https://github.com/grpc/proposal/blob/master/A6-client-retries.md, "Pushback".

#ifndef NORMD_CLIENT_RETRY_HINT_H_
#define NORMD_CLIENT_RETRY_HINT_H_

#include <optional>

#include "absl/status/status.h"
#include "base/clock.h"
#include "grpcpp/client_context.h"

namespace normd::client {

// What is told of retrying a call: after a time, or not at all.
struct RetryHint {
  bool retry = true;
  Duration after{0};
};

// Reads the hint of a call that has ended into its status. A value that is no number is "not at
// all", as the source has it; without one, the status stays as it is.
void SetRetryHint(const grpc::ClientContext& context, absl::Status& status);
std::optional<RetryHint> RetryHintOf(const absl::Status& status);

}  // namespace normd::client

#endif  // NORMD_CLIENT_RETRY_HINT_H_
