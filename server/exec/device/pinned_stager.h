// Stages the inputs of requests in pinned memory.

#ifndef NORMD_SERVER_EXEC_DEVICE_PINNED_STAGER_H_
#define NORMD_SERVER_EXEC_DEVICE_PINNED_STAGER_H_

#include <cstdint>

#include "base/clock.h"
#include "server/batching/request.h"
#include "server/exec/device/pinned_pool.h"

namespace normd {

// Thread-safe.
class PinnedStager final : public InputStager {
 public:
  // Stages requests whose inputs have more than `min_bytes` and at most `max_bytes`. `pool` and
  // `clock` outlive it.
  PinnedStager(PinnedPool& pool, const Clock& clock, std::int64_t min_bytes, std::int64_t max_bytes)
      : pool_(pool), clock_(clock), min_bytes_(min_bytes), max_bytes_(max_bytes) {}

  // Also leaves alone requests with an input outside host memory, and those for which the pool has
  // no room, or less than a quarter left: responses need it more.
  void Stage(Request& request) override;

 private:
  PinnedPool& pool_;
  const Clock& clock_;
  const std::int64_t min_bytes_;
  const std::int64_t max_bytes_;
};

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_DEVICE_PINNED_STAGER_H_
