// What the other folders record into: handles of typed methods. metrics.h gives those that count;
// these by themselves record nothing, which is what benchmarks without metrics use.

#ifndef NORMD_SERVER_METRICS_HANDLES_H_
#define NORMD_SERVER_METRICS_HANDLES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

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
  kGetServerInfo,
  kListSharedMemory,
  // These are of the Open Inference Protocol.
  kModelInfer,
  kModelStreamInfer,  // Each request of the stream.
  kServerLive,
  kServerReady,
  kModelReady,
  kServerMetadata,
  kModelMetadata,
  kModelConfig,
  kModelStatistics,
  kRepositoryIndex,
  kRepositoryModelLoad,
  kRepositoryModelUnload,
  kSharedMemoryStatus,  // These three are of the system's shared memory.
  kSharedMemoryRegister,
  kSharedMemoryUnregister,
  kCudaSharedMemory,  // All three of them.
  kTraceSetting,
  kLogSettings,
  kInfer  // Over HTTP; its other methods have the names of gRPC's.
};
inline constexpr std::size_t kMethodCount = static_cast<std::size_t>(Method::kInfer) + 1;
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
  kLate,
  kIdentityRate,
  kIdentityLimit,
  kConnectionCalls
};
inline constexpr std::size_t kRejections =
    static_cast<std::size_t>(Rejection::kConnectionCalls) + 1;
absl::string_view RejectionName(Rejection reason);

struct DurationTotal {
  std::int64_t count = 0;
  std::int64_t ns = 0;  // The total of all.
};

// What a model version's requests have taken so far, since its series began. Gather and copy_in are
// input, copy_out and encode are output.
struct ModelTotals {
  // Computed in batches of one size, or in a range of them.
  struct Batches {
    std::int64_t most_requests = 0;
    std::int64_t count = 0;
    std::int64_t input_ns = 0;
    std::int64_t compute_ns = 0;
    std::int64_t output_ns = 0;
  };
  DurationTotal succeeded;  // From arrival to the response's hand-over.
  DurationTotal failed;
  // Totals of successful requests. A batch's time counts for each of its requests.
  std::int64_t queue_ns = 0;
  std::int64_t input_ns = 0;
  std::int64_t compute_ns = 0;
  std::int64_t output_ns = 0;
  std::int64_t batches = 0;
  std::int64_t last_success_ms = 0;  // Since 1970; 0: none.
  std::vector<Batches> by_size;      // Ascending; those that occurred.
};

// The series of one model version.
class ModelMetrics {
 public:
  virtual ~ModelMetrics() = default;

  // One finished request: its code, and the time from arrival to the response's hand-over.
  virtual void RecordRequest(Method /*method*/, absl::StatusCode /*code*/, Duration /*duration*/) {}
  // A completed request, or a stream's piece, in a batch of so many; stages that did not happen are
  // left out.
  virtual void RecordStages(const StageTimes& /*stages*/, std::int64_t /*batch_requests*/ = 1) {}
  virtual void RecordBatch(std::int64_t /*requests*/, std::int64_t /*bytes*/) {}
  virtual void RecordRejection(Rejection /*reason*/) {}
  virtual void AddQueued(std::int64_t /*requests*/) {}  // Negative when they leave.
  virtual void RecordLoad(Duration /*duration*/) {}
  virtual ModelTotals Totals() const { return {}; }
};

// The series of one identity of the policy.
class IdentityMetrics {
 public:
  virtual ~IdentityMetrics() = default;
  // One finished call, with the bytes of its inputs as far as they were known.
  virtual void RecordCall(absl::StatusCode /*code*/, std::int64_t /*input_bytes*/) {}
};

class LaneMetrics {
 public:
  virtual ~LaneMetrics() = default;
  virtual void AddBusy(Duration /*duration*/) {}
  // Bytes that crossed the link to the lane's device and back, whether copied or mapped.
  virtual void AddCopied(std::int64_t /*in_bytes*/, std::int64_t /*out_bytes*/) {}
  // The lane takes no batch any more. A second call changes nothing.
  virtual void RecordRetired() {}
};

// The label `reason` of normd_connections_refused_total.
enum class ConnectionRefusal { kFull, kPeerFull, kNoDescriptors };
inline constexpr int kConnectionRefusals = 3;

// The label `reason` of normd_connections_ended_total.
enum class ConnectionEnding {
  kHandshakeTimeout,
  kNoHttp2,
  kNoTls,
  kOldTls,
  kOversize,
  kMessageTimeout,
  kTransportBytes
};
inline constexpr int kConnectionEndings = 7;
absl::string_view ConnectionEndingName(ConnectionEnding why);

// The statuses of HTTP with which requests are refused before a call begins: the label `status` of
// normd_requests_refused_total, "other" for all that are not listed.
inline constexpr std::array<int, 7> kRefusalStatuses = {400, 403, 404, 405, 417, 429, 431};
inline constexpr std::size_t kRequestRefusals = kRefusalStatuses.size() + 1;
std::string RefusalStatusName(std::size_t refusal);  // The label's value of this number.

// The label `port` of connections.
enum class RequestPort { kGrpc, kHttp };
inline constexpr std::size_t kRequestPorts = 2;

// The connections of one port.
class ConnectionMetrics {
 public:
  virtual ~ConnectionMetrics() = default;
  virtual void RecordAccepted() {}
  virtual void RecordRefused(ConnectionRefusal /*reason*/) {}
  // By the server, before gRPC had it or because of its traffic.
  virtual void RecordEnded(ConnectionEnding /*reason*/) {}
  virtual void SetOpen(std::int64_t /*connections*/) {}
  virtual void SetLimit(std::int64_t /*connections*/) {}
  // gRPC's alone: received and not given to the service.
  virtual void SetUndelivered(std::int64_t /*bytes*/) {}
  // HTTP's alone: a request that began no call, with the status of its refusal.
  virtual void RecordRefusedRequest(int /*status*/) {}
};

// The label `kind` of normd_shared_regions.
enum class RegionPlane { kNamed, kDescriptor, kDevice };
inline constexpr std::size_t kRegionPlanes = 3;

// The label `reason` of normd_shared_regions_refused_total.
enum class RegionRefusal {
  kOff,     // Not switched on.
  kName,    // No name for a region, or taken.
  kFile,    // No file that the server takes, or without these bytes.
  kDevice,  // No handle of memory on a device of the server's, or not of these bytes.
  kLimit,   // Beyond a limit.
};
inline constexpr std::size_t kRegionRefusals = 5;

// The label `memory` of normd_shared_tensor_bytes_total.
enum class RegionMemory { kHost, kDevice };
inline constexpr std::size_t kRegionMemories = 2;

// The label `reason` of normd_shared_regions_not_locked_total.
enum class PageLockRefusal {
  kLimit,   // Beyond a limit.
  kDriver,  // The driver has refused.
  kLate,    // The driver has not locked them yet, and requests may come.
};
inline constexpr std::size_t kPageLockRefusals = 3;

// The label `reason` of normd_shared_connections_ended_total.
enum class HandoverEnding {
  kNoRegion,  // It held no region and gave way to another connection.
  kUser,      // Its process is another user's.
};
inline constexpr std::size_t kHandoverEndings = 2;

// Memory that clients share.
class RegionMetrics {
 public:
  virtual ~RegionMetrics() = default;
  // Negative when they are unmapped.
  virtual void AddMapped(RegionPlane /*kind*/, std::int64_t /*regions*/, std::int64_t /*bytes*/) {}
  virtual void RecordRefused(RegionRefusal /*reason*/) {}
  // Connections at which clients hand over regions; negative when they end.
  virtual void AddConnections(std::int64_t /*connections*/) {}
  // By the server, beside those that are not of its protocol.
  virtual void RecordConnectionEnded(HandoverEnding /*reason*/) {}
  // Bytes of pages that are locked for devices; negative when they are unlocked.
  virtual void AddLocked(std::int64_t /*bytes*/) {}
  // A region that works without that.
  virtual void RecordNotLocked(PageLockRefusal /*reason*/) {}
  // A request whose memory its client has taken away.
  virtual void RecordBroken() {}
  // Bytes of tensors that were read and written where they lie.
  virtual void AddTensors(RegionMemory /*memory*/, std::int64_t /*in_bytes*/,
                          std::int64_t /*out_bytes*/) {}
};

// The versions of all models.
struct VersionCounts {
  std::int64_t loaded = 0;
  std::int64_t failed = 0;  // The last load; an older state may serve.
};

// The model repository.
class RepositoryMetrics {
 public:
  virtual ~RepositoryMetrics() = default;
  virtual void SetVersions(const VersionCounts& /*counts*/) {}
  virtual void RecordLoadFailure() {}
  // A look at the whole repository, whose folders could all be listed, or not.
  virtual void RecordPoll(bool /*complete*/) {}
};

// The server's certificate. Its series are there once SetNotAfter was called.
class TlsMetrics {
 public:
  virtual ~TlsMetrics() = default;
  // When the certificate in use expires, in seconds since 1970.
  virtual void SetNotAfter(std::int64_t /*seconds*/) {}
  // New files were there, and taken or not.
  virtual void RecordReload(bool /*taken*/) {}
};

// The policy and its tokens.
class PolicyMetrics {
 public:
  virtual ~PolicyMetrics() = default;
  // New files were there, and taken or not.
  virtual void RecordReload(bool /*taken*/) {}
};

}  // namespace normd

#endif  // NORMD_SERVER_METRICS_HANDLES_H_
