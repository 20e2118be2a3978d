#include "server/rpc/status.h"

#include <chrono>
#include <new>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/retry_after.h"
#include "server/accept/authorizer.h"

namespace normd {

grpc::Status ToGrpc(const absl::Status& status, Duration retry_after,
                    grpc::CallbackServerContext& context) {
  if (status.ok()) return grpc::Status::OK;
  // The codes of the two libraries are the same numbers.
  const auto code = static_cast<grpc::StatusCode>(status.code());
  try {
    std::optional<Duration> after = RetryAfterOf(status);
    if (absl::IsResourceExhausted(status)) after = RetryAfter(status, retry_after);
    if (after && *after != kNoRetry) {
      const auto ms = std::chrono::ceil<std::chrono::milliseconds>(*after);
      context.AddTrailingMetadata("grpc-retry-pushback-ms", absl::StrCat(ms.count()));
    }
    return grpc::Status(code, std::string(status.message()));
  } catch (const std::bad_alloc&) {
    return grpc::Status(code, "no memory left");  // So short that a string needs none.
  }
}

}  // namespace normd
