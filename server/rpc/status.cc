#include "server/rpc/status.h"

#include <chrono>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/retry_after.h"
#include "server/accept/authorizer.h"

namespace normd {

grpc::Status ToGrpc(const absl::Status& status, Duration retry_after,
                    grpc::CallbackServerContext& context) {
  if (status.ok()) return grpc::Status::OK;
  std::optional<Duration> after = RetryAfterOf(status);
  if (absl::IsResourceExhausted(status)) after = RetryAfter(status, retry_after);
  if (after && *after != kNoRetry) {
    const auto ms = std::chrono::ceil<std::chrono::milliseconds>(*after);
    context.AddTrailingMetadata("grpc-retry-pushback-ms", absl::StrCat(ms.count()));
  }
  // The codes of the two libraries are the same numbers.
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

}  // namespace normd
