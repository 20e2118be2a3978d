// Budgets that fit the available memory and mappings.

#ifndef NORMD_SERVER_CONFIG_MEMORY_BUDGET_H_
#define NORMD_SERVER_CONFIG_MEMORY_BUDGET_H_

#include <cstdint>
#include <string>

#include "server/config/config.h"

namespace normd {

// With less, no budget keeps gRPC from ending the process.
inline constexpr std::int64_t kLeastMemoryBytes = std::int64_t{128} << 20;

// Lowers max_transport_bytes, max_inflight_bytes, pool_bytes, max_request_bytes and
// stream_window_bytes, and with shared memory max_locked_shared_bytes and
// max_identity_locked_shared_bytes, of a valid `config`, so that they fit into `memory_left` bytes
// beside threads and heaps; it stays valid. Raises nothing. Returns the lowered flags, for the log;
// empty if there are none. gRPC ends the process when it gets no memory, so its bound must be
// reached before. `may_lock_pages`: false on a server without devices, which locks none.
std::string FitToMemory(ServerConfig& config, std::int64_t memory_left, bool may_lock_pages);

// Lowers max_shared_regions and max_identity_shared_regions of a valid `config` with shared memory,
// so that regions take at most half of the `mappings_left`: a process without any gets no memory
// for a message and no thread. At least one region. Returns the lowered flags, as above.
std::string FitToMappings(ServerConfig& config, std::int64_t mappings_left);

}  // namespace normd

#endif  // NORMD_SERVER_CONFIG_MEMORY_BUDGET_H_
