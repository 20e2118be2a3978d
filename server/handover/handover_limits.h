// How many connections the socket of regions takes: a pure function of limits.

#ifndef NORMD_SERVER_HANDOVER_HANDOVER_LIMITS_H_
#define NORMD_SERVER_HANDOVER_HANDOVER_LIMITS_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"

namespace normd {

// As many descriptors as the system passes with one packet (SCM_MAX_FD).
inline constexpr std::size_t kMaxPassedDescriptors = 253;
// Of what clients have passed or left, how many may wait to be closed before nobody is served.
inline constexpr std::size_t kMaxUnclosed = 64;

struct HandoverLimits {
  // Connections that hold no region. Beyond it one of them gives way to each that comes.
  std::size_t without_regions = 256;
  // Connections that hold regions, of all owners and of one. Others are refused their first.
  std::size_t with_regions = 1024;
  std::size_t owner_with_regions = 1024;
};

// Connections with regions are bounded by `max_regions`, and both kinds together by a third of the
// descriptors that are left of `descriptor_limit`, of which `open_descriptors` are taken; then one
// owner leaves a quarter to others. Unavailable where that is less than one of each.
absl::StatusOr<HandoverLimits> DecideHandoverLimits(std::int64_t max_regions,
                                                    std::int64_t descriptor_limit,
                                                    std::int64_t open_descriptors);

// The most descriptors that the listener and its clients ever have open.
std::int64_t DescriptorsOf(const HandoverLimits& limits);

}  // namespace normd

#endif  // NORMD_SERVER_HANDOVER_HANDOVER_LIMITS_H_
