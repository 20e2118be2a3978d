#include "server/handover/handover_limits.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/net/connection_policy.h"

namespace normd {
namespace {

constexpr std::int64_t kMaxWithoutRegions = 256;
// The listening socket, the event that ends its thread, and one packet's descriptors beside those
// that wait to be closed.
constexpr std::int64_t kOwnDescriptors =
    2 + static_cast<std::int64_t>(kMaxPassedDescriptors + kMaxUnclosed);

}  // namespace

absl::StatusOr<HandoverLimits> DecideHandoverLimits(std::int64_t max_regions,
                                                    std::int64_t descriptor_limit,
                                                    std::int64_t open_descriptors) {
  const std::int64_t taken = open_descriptors + kReservedDescriptors + kOwnDescriptors;
  const std::int64_t share = (descriptor_limit - taken) / 3;
  if (share < 2) {
    return absl::UnavailableError(absl::StrCat("shared_memory_listen: ", descriptor_limit,
                                               " descriptors (RLIMIT_NOFILE), wanted at least ",
                                               taken + 6));
  }
  HandoverLimits limits;
  const std::int64_t without = std::min(kMaxWithoutRegions, share / 2);
  const std::int64_t with = std::min(max_regions, share - without);
  limits.without_regions = static_cast<std::size_t>(without);
  limits.with_regions = static_cast<std::size_t>(with);
  limits.owner_with_regions =
      static_cast<std::size_t>(with < max_regions ? (3 * with + 3) / 4 : with);
  return limits;
}

std::int64_t DescriptorsOf(const HandoverLimits& limits) {
  return kOwnDescriptors + static_cast<std::int64_t>(limits.without_regions + limits.with_regions);
}

}  // namespace normd
