// Budgets that fit the memory there is.

#ifndef NORMD_SERVER_CONFIG_MEMORY_BUDGET_H_
#define NORMD_SERVER_CONFIG_MEMORY_BUDGET_H_

#include <cstdint>
#include <string>

#include "server/config/config.h"

namespace normd {

// Lowers max_transport_bytes, max_inflight_bytes, pool_bytes, max_request_bytes and
// stream_window_bytes, and with shared memory max_locked_shared_bytes and
// max_identity_locked_shared_bytes, of a valid `config` to what fits into `memory_left` bytes
// beside threads and heaps; it stays valid. Raises nothing. Returns what was lowered, for the log;
// empty when nothing had to be. gRPC ends the process when it gets no memory, so its bound must be
// met before. `may_lock_pages`: false on a server that certainly has no device, which locks none.
std::string FitToMemory(ServerConfig& config, std::int64_t memory_left, bool may_lock_pages);

}  // namespace normd

#endif  // NORMD_SERVER_CONFIG_MEMORY_BUDGET_H_
