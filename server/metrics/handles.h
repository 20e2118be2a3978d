// What the other folders record into: handles of typed methods, which metrics.h gives. A model's
// are in model_series.h.

#ifndef NORMD_SERVER_METRICS_HANDLES_H_
#define NORMD_SERVER_METRICS_HANDLES_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "server/metrics/families.h"
#include "server/metrics/rare_counts.h"
#include "server/metrics/sharded_cells.h"
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

// Each handle is thread-safe, and gives its series to a scrape by Collect.

// The series of one identity of the policy.
class IdentityMetrics {
 public:
  // One finished call, with the bytes of its inputs as far as they were known.
  void RecordCall(absl::StatusCode code, std::int64_t input_bytes);
  // Nothing, while nothing was recorded.
  void Collect(absl::string_view identity, FamilyList& out) const;

 private:
  static constexpr std::size_t kOutcomes = 4;
  ShardedCells cells_{kOutcomes + 1};  // Calls by outcome; the inputs' bytes.
};

class LaneMetrics {
 public:
  void AddBusy(Duration duration) { busy_ns_.Add(0, std::max<std::int64_t>(duration.count(), 0)); }
  // Bytes that crossed the link to the lane's device and back, whether copied or mapped.
  void AddCopied(std::int64_t in_bytes, std::int64_t out_bytes) {
    copied_bytes_.Add(0, in_bytes);
    copied_bytes_.Add(1, out_bytes);
  }
  // The lane takes no batch any more. A second call changes nothing.
  void RecordRetired() { retired_.Set(1); }

  double busy_seconds() const { return static_cast<double>(busy_ns_.Sum(0)) / 1e9; }
  std::int64_t copied_in_bytes() const { return copied_bytes_.Sum(0); }
  std::int64_t copied_out_bytes() const { return copied_bytes_.Sum(1); }
  bool retired() const { return retired_.Get() != 0; }

 private:
  ShardedCells busy_ns_{1};
  ShardedCells copied_bytes_{2};  // In, out.
  RareCount retired_;
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

using RequestRefusalCounts = std::array<std::int64_t, kRequestRefusals>;

// The connections of one port. Its series are there once Show was called.
class ConnectionMetrics {
 public:
  explicit ConnectionMetrics(RequestPort port) : port_(port) {}

  void RecordAccepted() { accepted_.Add(1); }
  void RecordRefused(ConnectionRefusal reason) { refused_.Add(reason); }
  // By the server, before gRPC had it or because of its traffic.
  void RecordEnded(ConnectionEnding reason) { ended_.Add(reason); }
  void SetOpen(std::int64_t connections) { open_.Set(connections); }
  void SetLimit(std::int64_t connections) { limit_.Set(connections); }
  // gRPC's alone: received and not given to the service.
  void SetUndelivered(std::int64_t bytes) { undelivered_bytes_.Set(bytes); }
  // HTTP's alone: a request that began no call, with the status of its refusal.
  void RecordRefusedRequest(int status);
  void AddRefusedRequests(RequestRefusalCounts& counts) const;
  void Show() { shown_.Set(1); }
  void Collect(FamilyList& out) const;

 private:
  const RequestPort port_;
  RareCount shown_;
  RareCount accepted_;
  RareCounts<kConnectionRefusals> refused_;
  RareCounts<kConnectionEndings> ended_;
  RareCount open_;
  RareCount limit_;
  RareCount undelivered_bytes_;
  RareCounts<kRequestRefusals> refused_requests_;
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

// Memory that clients share. The bytes of tensors are counted for each request and sharded, the
// others are rare.
class RegionMetrics {
 public:
  // Negative when they are unmapped.
  void AddMapped(RegionPlane kind, std::int64_t regions, std::int64_t bytes) {
    regions_.Add(kind, regions);
    bytes_.Add(kind, bytes);
  }
  void RecordRefused(RegionRefusal reason) { refused_.Add(reason); }
  // Connections at which clients hand over regions; negative when they end.
  void AddConnections(std::int64_t connections) { connections_.Add(connections); }
  // By the server, beside those that are not of its protocol.
  void RecordConnectionEnded(HandoverEnding reason) { connections_ended_.Add(reason); }
  // Bytes of pages that are locked for devices; negative when they are unlocked.
  void AddLocked(std::int64_t bytes) { locked_bytes_.Add(bytes); }
  // A region that works without that.
  void RecordNotLocked(PageLockRefusal reason) { not_locked_.Add(reason); }
  // A request whose memory its client has taken away.
  void RecordBroken() { broken_.Add(1); }
  // Bytes of tensors that were read and written where they lie.
  void AddTensors(RegionMemory memory, std::int64_t in_bytes, std::int64_t out_bytes) {
    const std::size_t first = 2 * static_cast<std::size_t>(memory);
    tensor_bytes_.Add(first, in_bytes);
    tensor_bytes_.Add(first + 1, out_bytes);
  }
  void Collect(FamilyList& out) const;

 private:
  RareCounts<kRegionPlanes> regions_;
  RareCounts<kRegionPlanes> bytes_;
  RareCounts<kRegionRefusals> refused_;
  RareCount connections_;
  RareCounts<kHandoverEndings> connections_ended_;
  RareCount locked_bytes_;
  RareCounts<kPageLockRefusals> not_locked_;
  RareCount broken_;
  ShardedCells tensor_bytes_{2 * kRegionMemories};  // In and out, for each memory.
};

// The versions of all models.
struct VersionCounts {
  std::int64_t loaded = 0;
  std::int64_t failed = 0;  // The last load; an older state may serve.
};

// The model repository.
class RepositoryMetrics {
 public:
  void SetVersions(const VersionCounts& counts) {
    loaded_.Set(counts.loaded);
    failed_.Set(counts.failed);
  }
  void RecordLoadFailure() { failures_.Add(1); }
  // A look at the whole repository, whose folders could all be listed, or not.
  void RecordPoll(bool complete) { polls_.Add(complete); }
  void Collect(FamilyList& out) const;

 private:
  RareCount loaded_;
  RareCount failed_;
  RareCount failures_;
  RareCounts<2> polls_;
};

// The server's certificate. Its series are there once SetNotAfter was called.
class TlsMetrics {
 public:
  // When the certificate in use expires, in seconds since 1970.
  void SetNotAfter(std::int64_t seconds) { not_after_.Set(seconds); }
  // New files were there, and taken or not.
  void RecordReload(bool taken) { reloads_.Add(taken); }
  void Collect(FamilyList& out) const;

 private:
  RareCount not_after_;
  RareCounts<2> reloads_;
};

// The policy and its tokens. Its series are there once Show was called.
class PolicyMetrics {
 public:
  // New files were there, and taken or not.
  void RecordReload(bool taken) { reloads_.Add(taken); }
  void Show() { shown_.Set(1); }
  void Collect(FamilyList& out) const;

 private:
  RareCount shown_;
  RareCounts<2> reloads_;
};

}  // namespace normd

#endif  // NORMD_SERVER_METRICS_HANDLES_H_
