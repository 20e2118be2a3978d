#include "server/rpc/status.h"

#include <chrono>
#include <exception>
#include <new>
#include <string>

#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"

namespace normd {

grpc::Status ToGrpc(const absl::Status& status, Duration retry_after,
                    grpc::CallbackServerContext& context, absl::string_view request_id) {
  if (status.ok()) return grpc::Status::OK;
  // The codes of the two libraries are the same numbers.
  const auto code = static_cast<grpc::StatusCode>(status.code());
  switch (status.code()) {
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
      spdlog::error("a request failed{}{}: {}", request_id.empty() ? "" : ", x-request-id ",
                    std::string(request_id), status.ToString());
      return grpc::Status(grpc::StatusCode::INTERNAL,
                          "the server failed to compute this; its log says why");
    case absl::StatusCode::kResourceExhausted: {
      const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(retry_after);
      context.AddTrailingMetadata("grpc-retry-pushback-ms", absl::StrCat(ms.count()));
      break;
    }
    default: break;
  }
  return grpc::Status(code, std::string(status.message()));
}

absl::Status CatchAll(absl::FunctionRef<absl::Status()> body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("memory: the server has none left for this request");
  } catch (const std::exception& error) {
    return absl::InternalError(error.what());
  } catch (...) {
    return absl::InternalError("an exception of unknown type");
  }
}

}  // namespace normd
