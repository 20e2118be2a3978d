// Checks the health of a fleet's servers, and resolves its names, on threads of its own.

#ifndef NORMD_CLIENT_FLEET_HEALTH_PROBER_H_
#define NORMD_CLIENT_FLEET_HEALTH_PROBER_H_

#include <memory>
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
  // Checks each server at once, then every `interval`, never twice at a time.
  HealthProber(std::shared_ptr<ServerSet> servers, std::vector<ServerName> names,
               const ProberOptions& options);
  // Checks in flight end by themselves.
  ~HealthProber();

  // Call when a server seems to be gone: checks it, and resolves its name, again soon.
  void Hurry();

 private:
  struct Checks;  // The pending checks.

  // Whether to check the server now; reports an unanswered check to the set.
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
  std::thread resolver_;  // Only if names can change.
};

}  // namespace normd::client

#endif  // NORMD_CLIENT_FLEET_HEALTH_PROBER_H_
