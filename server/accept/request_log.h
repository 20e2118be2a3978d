// One JSON line for each slow request, and for a sample of all requests.

#ifndef NORMD_SERVER_ACCEPT_REQUEST_LOG_H_
#define NORMD_SERVER_ACCEPT_REQUEST_LOG_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "server/accept/request_ids.h"
#include "server/batching/request.h"
#include "server/metrics/stage.h"

namespace normd {

struct RequestLogOptions {
  Duration slow_threshold{0};     // A request of this duration is slow; 0: none is.
  std::int64_t sample_every = 0;  // One request in this many; 0: none.
};

// The contents of a line. Borrows; only read during Write.
struct RequestRecord {
  absl::string_view method;
  const RequestIds& ids;
  absl::string_view model;  // Empty if the request meant no loaded model.
  std::int64_t version = 0;
  const absl::Status& status;  // As the client was told.
  Duration duration{};         // From arrival until gRPC has the response.
  const StageTimes& stages;
  // Its id is 0 for a request that was not computed; for a stream, the last one.
  const BatchInfo& batch;
  absl::string_view peer;
  absl::string_view identity;  // Empty: no policy, or nobody's.
  std::int64_t bytes = 0;      // The inputs' bytes; 0 if it was refused before they were known.
};

// Thread-safe.
class RequestLog {
 public:
  enum class Reason { kNone, kSlow, kSample };
  using WriteLine = std::function<void(const std::string& line)>;

  // `write_line` gets a line without its end, on any thread, and must not block for long: a lane
  // may wait for it.
  RequestLog(const RequestLogOptions& options, WriteLine write_line);

  // Whether a finished request gets a line. Counts it for the sampling; takes no lock.
  Reason Pick(Duration duration);

  // docs/metrics.md describes the line. A request without an id gets one. Never throws: a line that
  // cannot be made is left out.
  void Write(Reason reason, const RequestRecord& record) noexcept;

 private:
  const RequestLogOptions options_;
  const WriteLine write_line_;
  const std::string id_prefix_;  // Differs between processes.
  std::atomic<std::int64_t> requests_{0};
  std::atomic<std::int64_t> next_id_{1};
};

}  // namespace normd

#endif  // NORMD_SERVER_ACCEPT_REQUEST_LOG_H_
