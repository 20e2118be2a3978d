// The regions that clients share with the server, and the listener that takes them, from the flags.

#ifndef NORMD_SERVER_SHARED_MEMORY_PARTS_H_
#define NORMD_SERVER_SHARED_MEMORY_PARTS_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "server/accept/authorizer.h"
#include "server/config/config.h"
#include "server/exec/backends.h"
#include "server/handover/region_listener.h"
#include "server/metrics/metrics.h"
#include "server/regions/page_locks.h"
#include "server/regions/region_registry.h"

namespace normd {

// The first two are null without shared memory.
struct SharedMemory {
  std::unique_ptr<PageLocks> page_locks;
  std::unique_ptr<RegionRegistry> regions;
  std::int64_t descriptors = 0;  // As many as its clients may have opened.
};

// What it borrows outlives it.
SharedMemory SharedMemoryOf(const ServerConfig& config, Backend& backend, Metrics& metrics,
                            const Clock& clock);

// Null without an address. Its clients' descriptors come on top of those of `shared`.
absl::StatusOr<std::unique_ptr<RegionListener>> HandoverOf(const ServerConfig& config,
                                                           SharedMemory& shared,
                                                           const Authorizer& authorizer,
                                                           Metrics& metrics);

}  // namespace normd

#endif  // NORMD_SERVER_SHARED_MEMORY_PARTS_H_
