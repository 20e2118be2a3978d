// What the other folders record into: handles of typed methods. See metrics.h, which gives them.

#ifndef NORMD_SERVER_METRICS_HANDLES_H_
#define NORMD_SERVER_METRICS_HANDLES_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "server/metrics/stage.h"

namespace normd {

// The label `method`.
enum class Method {
  kNormalize,
  kNormalizeStream,
  kListModels,
  kGetModel,
  kLoadModel,
  kUnloadModel,
  kGetServerInfo
};
// Its value of the label, for the request log.
absl::string_view MethodName(Method method);

// The label `reason` of normd_rejected_total.
enum class Rejection {
  kQueueFull,
  kInflightBytes,
  kInflightRequests,
  kDraining,
  kNotReady,
  kConnectionShare,
  kPeerShare,
  kLate
};

// The series of one model version.
class ModelMetrics {
 public:
  virtual ~ModelMetrics() = default;

  // One finished request: its code, and the time from arrival to the answer's hand-over.
  virtual void RecordRequest(Method method, absl::StatusCode code, Duration duration) = 0;
  // A completed Normalize; stages that did not happen are left out.
  virtual void RecordStages(const StageTimes& stages) = 0;
  virtual void RecordBatch(std::int64_t requests, std::int64_t bytes) = 0;
  virtual void RecordRejection(Rejection reason) = 0;
  virtual void AddQueued(std::int64_t requests) = 0;  // Negative when they leave.
  virtual void RecordLoad(Duration duration) = 0;
};

class LaneMetrics {
 public:
  virtual ~LaneMetrics() = default;
  virtual void AddBusy(Duration duration) = 0;
  // Bytes that crossed the link to the lane's device and back, whether copied or mapped.
  virtual void AddCopied(std::int64_t in_bytes, std::int64_t out_bytes) = 0;
  // The lane takes no batch any more. A second call changes nothing.
  virtual void RecordRetired() = 0;
};

// The label `reason` of normd_connections_refused_total.
enum class ConnectionRefusal { kFull, kPeerFull, kNoDescriptors };
inline constexpr int kConnectionRefusals = 3;

// The label `reason` of normd_connections_ended_total.
enum class ConnectionEnding {
  kHandshakeTimeout,
  kNoHttp2,
  kOversize,
  kMessageTimeout,
  kTransportBytes
};
inline constexpr int kConnectionEndings = 5;
absl::string_view ConnectionEndingName(ConnectionEnding why);

// The connections of gRPC's port.
class ConnectionMetrics {
 public:
  virtual ~ConnectionMetrics() = default;
  virtual void RecordAccepted() = 0;
  virtual void RecordRefused(ConnectionRefusal reason) = 0;
  // By the server, before gRPC had it or because of its traffic.
  virtual void RecordEnded(ConnectionEnding reason) = 0;
  virtual void SetOpen(std::int64_t connections) = 0;
  virtual void SetLimit(std::int64_t connections) = 0;
  // Received and not given to the service.
  virtual void SetUndelivered(std::int64_t bytes) = 0;
};

}  // namespace normd

#endif  // NORMD_SERVER_METRICS_HANDLES_H_
