// The servers of a fleet: the state of each, and its calls.

#ifndef NORMD_CLIENT_FLEET_SERVER_SET_H_
#define NORMD_CLIENT_FLEET_SERVER_SET_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "client/client.h"
#include "client/fleet/addresses.h"
#include "client/fleet/balance.h"

namespace normd::client {

// A call at a server. Thread-safe.
class Attempt {
 public:
  virtual ~Attempt() = default;
  // Call when the server hangs: the attempt ends here, whatever the server does with it. Does not
  // block.
  virtual void Abandon() = 0;
};

// One server. Its set's mutex guards everything that is not constant.
struct Server {
  Server(ServerAddress a, std::unique_ptr<Client> c)
      : address(std::move(a)), client(std::move(c)) {}

  const ServerAddress address;
  const std::unique_ptr<Client> client;

  ServerState state = ServerState::kUnknown;
  std::string why;  // The reason for a state that is not kServing.
  int outstanding = 0;
  int missed_checks = 0;  // In a row.
  std::int64_t calls = 0;
  std::int64_t failed = 0;
  std::set<std::shared_ptr<Attempt>> attempts;  // shared: with the calls that made them.
};

// The counts of one server.
struct ServerCounts {
  std::string target;
  ServerState state = ServerState::kUnknown;
  std::int64_t calls = 0;
  std::int64_t failed = 0;
};

// Thread-safe.
class ServerSet {
 public:
  using MakeClient = std::function<absl::StatusOr<std::unique_ptr<Client>>(const ServerAddress&)>;

  // A server with `silent_after` unanswered checks in a row is silent.
  ServerSet(BalancePolicy policy, int silent_after, MakeClient make_client);

  // Replaces the set's servers: known ones keep their state, removed ones keep their calls. An
  // error of make_client leaves the set unchanged.
  absl::Status Update(const std::vector<ServerAddress>& addresses);

  // Picks the server of a call (Picker) and counts the call; null when none is available.
  std::shared_ptr<Server> Begin(const Server* avoid);
  // Registers the attempt, so that it can be abandoned, until End.
  void Register(Server& server, std::shared_ptr<Attempt> attempt);
  // Ends the call. UNAVAILABLE makes the server down until a check succeeds; true then.
  bool End(Server& server, const std::shared_ptr<Attempt>& attempt, const absl::Status& status);

  // Takes the result of a health check. Abandons the calls of a silent server.
  void Observe(Server& server, const absl::StatusOr<HealthStatus>& health);

  std::vector<std::shared_ptr<Server>> servers() const;
  std::vector<ServerCounts> counts() const;
  // Waits until a server reports that it serves (true), all have been checked and none does, or the
  // deadline passes.
  bool WaitUntilServing(TimePoint deadline) const;
  // UNAVAILABLE, with the state of each server: the reason why no call can be made.
  absl::Status Unavailable() const;

 private:
  const int silent_after_;
  const MakeClient make_client_;
  mutable Mutex mutex_;
  mutable CondVar changed_;
  Picker picker_ ABSL_GUARDED_BY(mutex_);
  // shared: with the calls in flight and the checks, which outlast a server's place here.
  std::vector<std::shared_ptr<Server>> servers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace normd::client

#endif  // NORMD_CLIENT_FLEET_SERVER_SET_H_
