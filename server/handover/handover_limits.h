// The limits of the region socket's connections: a pure function.

#ifndef NORMD_SERVER_HANDOVER_HANDOVER_LIMITS_H_
#define NORMD_SERVER_HANDOVER_HANDOVER_LIMITS_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"

namespace normd {

// As many descriptors as the system passes with one packet (SCM_MAX_FD).
inline constexpr std::size_t kMaxPassedDescriptors = 253;
// The number of clients' descriptors that may wait to be closed before clients are no longer
// served.
inline constexpr std::size_t kMaxUnclosed = 64;

struct HandoverLimits {
  // Connections without a region. Beyond it one of them gives way to each new one.
  std::size_t without_regions = 256;
  // Connections with regions, of all owners and of one. Others are refused their first region.
  std::size_t with_regions = 1024;
  std::size_t owner_with_regions = 1024;
};

// `max_regions` bounds connections with regions. Both kinds together are bounded by a third of the
// descriptors left of `descriptor_limit` after `open_descriptors`; one owner then leaves a quarter
// to others. Unavailable if that is less than one of each.
absl::StatusOr<HandoverLimits> DecideHandoverLimits(std::int64_t max_regions,
                                                    std::int64_t descriptor_limit,
                                                    std::int64_t open_descriptors);

// The most descriptors that the listener and its clients ever have open.
std::int64_t DescriptorsOf(const HandoverLimits& limits);

}  // namespace normd

#endif  // NORMD_SERVER_HANDOVER_HANDOVER_LIMITS_H_
