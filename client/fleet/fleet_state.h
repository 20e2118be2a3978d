// The state that a FleetClient shares with its calls.

#ifndef NORMD_CLIENT_FLEET_FLEET_STATE_H_
#define NORMD_CLIENT_FLEET_FLEET_STATE_H_

#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "client/fleet/fleet_options.h"
#include "client/fleet/health_prober.h"
#include "client/fleet/retry.h"
#include "client/fleet/server_set.h"

namespace normd::client {

// Thread-safe: the mutex guards the members marked with it.
class FleetState {
 public:
  FleetState(const FleetOptions& o, std::shared_ptr<ServerSet> s)
      : options(o), servers(std::move(s)), budget(o.retry) {}

  // Call when a server has failed a call.
  void Hurry() {
    MutexLock lock(mutex);
    if (prober != nullptr) prober->Hurry();
  }
  // The first that serves, else the first; there is always one.
  std::shared_ptr<Server> AnyServer() const {
    const std::vector<ServerCounts> known = servers->counts();
    const auto all = servers->servers();
    for (std::size_t i = 0; i < known.size() && i < all.size(); ++i) {
      if (known[i].state == ServerState::kServing) return all[i];
    }
    return all.front();
  }

  const FleetOptions options;
  const std::shared_ptr<ServerSet> servers;

  Mutex mutex;
  bool closed ABSL_GUARDED_BY(mutex) = false;
  std::unique_ptr<HealthProber> prober ABSL_GUARDED_BY(mutex);  // Null when closed.
  RetryBudget budget ABSL_GUARDED_BY(mutex);
  std::minstd_rand random ABSL_GUARDED_BY(mutex){std::random_device{}()};
  FleetCounts counted ABSL_GUARDED_BY(mutex);  // Without the servers' counts.
};

}  // namespace normd::client

#endif  // NORMD_CLIENT_FLEET_FLEET_STATE_H_
