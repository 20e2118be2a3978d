// The names, labels and help of all metrics, and their series as one scrape collects them.

#ifndef NORMD_SERVER_METRICS_FAMILIES_H_
#define NORMD_SERVER_METRICS_FAMILIES_H_

#include <initializer_list>
#include <vector>

#include "absl/strings/string_view.h"
#include "prometheus/metric_family.h"
#include "server/metrics/histogram.h"

namespace normd {

enum class Family {
  kRequests,
  kRequestDuration,
  kStageDuration,
  kBatchRequests,
  kBatchBytes,
  kSaturation,
  kQueueRequests,
  kQueueLimitRequests,
  kInflightBytes,
  kInflightLimitBytes,
  kRejected,
  kRequestsRefused,
  kPayloadBytes,
  kLaneBusy,
  kLanes,
  kDeviceCopied,
  kDeviceInfo,
  kModelLoadDuration,
  kModelsWithoutSeries,
  kModelVersions,
  kModelLoadFailures,
  kRepositoryPolls,
  kIdentityCalls,
  kIdentityInputBytes,
  kPoolBytes,
  kConnections,
  kConnectionsLimit,
  kConnectionsAccepted,
  kConnectionsRefused,
  kConnectionsEnded,
  kUndeliveredBytes,
  kCertificateNotAfter,
  kCertificateReloads,
  kPolicyReloads,
  kSharedRegions,
  kSharedRegionBytes,
  kSharedRegionsRefused,
  kSharedConnections,
  kSharedConnectionsEnded,
  kSharedLockedBytes,
  kSharedRegionsNotLocked,
  kSharedRegionsBroken,
  kSharedTensorBytes,
  kLostLogLines,
  kReady,
  kBuildInfo,
};

// Collects one scrape. `labels` are the values of the family's labels, in the order in which
// families.cc names them; there must be as many. Not thread-safe.
class FamilyList {
 public:
  using Labels = std::initializer_list<absl::string_view>;

  FamilyList();
  // For a family of counters or of gauges.
  void Add(Family family, Labels labels, double value);
  // For a family of histograms.
  void Add(Family family, Labels labels, const Histogram& histogram);

  // Families without a series are left out.
  std::vector<prometheus::MetricFamily> Take() &&;

 private:
  prometheus::ClientMetric& NewSeries(Family family, Labels labels);

  std::vector<prometheus::MetricFamily> families_;
};

}  // namespace normd

#endif  // NORMD_SERVER_METRICS_FAMILIES_H_
