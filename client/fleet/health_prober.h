// Checks the health of a fleet's servers, and resolves its names, on threads of its own.

#ifndef NORMD_CLIENT_FLEET_HEALTH_PROBER_H_
#define NORMD_CLIENT_FLEET_HEALTH_PROBER_H_

#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/periodic_thread.h"
#include "client/fleet/addresses.h"
#include "client/fleet/server_set.h"

namespace normd::client {

struct ProberOptions {
  Duration interval;
  Duration timeout;
  Duration resolve_interval;
  Resolver resolver;
};

// Thread-safe. Checks in flight end by themselves.
class HealthProber {
 public:
  // Checks each server at once, then every `interval`, never twice at a time.
  HealthProber(std::shared_ptr<ServerSet> servers, std::vector<ServerName> names,
               const ProberOptions& options);

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
  // Last: they use the others.
  PeriodicThread prober_;
  std::optional<PeriodicThread> resolver_;  // Only if names can change.
};

}  // namespace normd::client

#endif  // NORMD_CLIENT_FLEET_HEALTH_PROBER_H_
