// Asks a fleet's servers after their health, and its names for their addresses, on threads of its
// own.

#ifndef NORMD_CLIENT_FLEET_HEALTH_PROBER_H_
#define NORMD_CLIENT_FLEET_HEALTH_PROBER_H_

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "client/fleet/addresses.h"
#include "client/fleet/server_set.h"

namespace normd::client {

struct ProberOptions {
  Duration interval;
  Duration timeout;
  Duration resolve_interval;
  Resolver resolver;
};

// Thread-safe.
class HealthProber {
 public:
  // Asks each server at once, then every `interval`, never twice at a time.
  HealthProber(std::shared_ptr<ServerSet> servers, std::vector<ServerName> names,
               const ProberOptions& options);
  // Checks in flight end by themselves.
  ~HealthProber();

  // A server seems to be gone: asks it again soon, and its name for its addresses.
  void Hurry();

 private:
  struct Checks;  // Which servers are being asked.

  // Whether the server is to be asked now; tells the set of one that does not answer.
  bool IsDue(const std::shared_ptr<Server>& server);
  void Probe();
  void Resolve();

  const std::shared_ptr<ServerSet> servers_;  // shared: with the checks in flight.
  const std::vector<ServerName> names_;
  const ProberOptions options_;
  const std::shared_ptr<Checks> checks_;  // shared: with the checks in flight.
  Mutex mutex_;
  CondVar wake_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool hurry_probe_ ABSL_GUARDED_BY(mutex_) = false;
  bool hurry_resolve_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread prober_;
  std::thread resolver_;  // Only where names can change.
};

}  // namespace normd::client

#endif  // NORMD_CLIENT_FLEET_HEALTH_PROBER_H_
