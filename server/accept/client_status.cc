#include "server/accept/client_status.h"

#include <exception>
#include <new>
#include <string>

#include "base/retry_after.h"
#include "server/batching/request.h"
#include "spdlog/spdlog.h"

namespace normd {

absl::Status ForClient(const absl::Status& status, absl::string_view request_id) {
  if (!absl::IsInternal(status) && !absl::IsUnknown(status)) return status;
  spdlog::error("a request failed{}{}: {}", request_id.empty() ? "" : ", x-request-id ",
                std::string(request_id), status.ToString());
  absl::Status told = absl::InternalError("the server failed to compute this; its log says why");
  if (const auto after = RetryAfterOf(status)) SetRetryAfter(*after, told);
  return told;
}

absl::Status CatchAll(absl::FunctionRef<absl::Status()> body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return NoMemory();
  } catch (const std::exception& error) {
    return absl::InternalError(error.what());
  } catch (...) {
    return absl::InternalError("an exception of unknown type");
  }
}

}  // namespace normd
