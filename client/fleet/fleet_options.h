// The options of a fleet's client, and its counts.

#ifndef NORMD_CLIENT_FLEET_FLEET_OPTIONS_H_
#define NORMD_CLIENT_FLEET_FLEET_OPTIONS_H_

#include <chrono>
#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "client/client.h"
#include "client/fleet/addresses.h"
#include "client/fleet/balance.h"
#include "client/fleet/retry.h"
#include "client/fleet/server_set.h"

namespace normd::client {

struct FleetOptions {
  // For each server; the fleet's retries replace `retries`.
  ClientOptions client;
  BalancePolicy balance = BalancePolicy::kRoundRobin;
  RetryPolicy retry;
  // The time without a response after which a second attempt goes to another server, out of the
  // same budget; the first response counts. 0: never. Every call of this class may be repeated: a
  // normalization changes nothing.
  Duration hedge_after{0};
  // The interval between a server's health checks, the time limit of a check, and the number of
  // checks in a row that may be missed before the server's calls go elsewhere.
  Duration health_interval = std::chrono::milliseconds(500);
  Duration health_timeout = std::chrono::seconds(1);
  int silent_after = 2;
  // How often names are resolved again. They also are when a server is gone, at most once a second.
  Duration resolve_interval = std::chrono::seconds(30);
  Resolver resolver = ResolveServers;
};

struct FleetCounts {
  std::int64_t calls = 0;
  std::int64_t attempts = 0;
  std::int64_t retries = 0;
  std::int64_t hedges = 0;
  std::int64_t abandoned = 0;    // Attempts taken from a server that hung.
  std::int64_t over_budget = 0;  // Retries that the budget did not allow.
  std::vector<ServerCounts> servers;
};

}  // namespace normd::client

#endif  // NORMD_CLIENT_FLEET_FLEET_OPTIONS_H_
