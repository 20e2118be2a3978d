// The servers of a fleet: what is known of each, and which calls it has.

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

// A call that a server has. Thread-safe.
class Attempt {
 public:
  virtual ~Attempt() = default;
  // Its server hangs: it ends here and now, whatever becomes of it there. Does not block.
  virtual void Abandon() = 0;
};

// One server. What is not constant is guarded by its set's mutex.
struct Server {
  Server(ServerAddress a, std::unique_ptr<Client> c)
      : address(std::move(a)), client(std::move(c)) {}

  const ServerAddress address;
  const std::unique_ptr<Client> client;

  ServerState state = ServerState::kUnknown;
  std::string why;  // Of a state that is not good.
  int outstanding = 0;
  int missed_checks = 0;  // In a row.
  std::int64_t calls = 0;
  std::int64_t failed = 0;
  std::set<std::shared_ptr<Attempt>> attempts;  // shared: with the calls that made them.
};

// What a set has counted of one of its servers.
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

  // A server that leaves `silent_after` checks in a row unanswered is silent.
  ServerSet(BalancePolicy policy, int silent_after, MakeClient make_client);

  // Makes the set these servers: those that are known stay as they are, those that are no more keep
  // the calls they have. An error of make_client leaves the set as it was.
  absl::Status Update(const std::vector<ServerAddress>& addresses);

  // Picks the server of a call (Picker) and counts the call; null where none can have it.
  std::shared_ptr<Server> Begin(const Server* avoid);
  // Tells of the attempt, so that it can be abandoned, until End.
  void Register(Server& server, std::shared_ptr<Attempt> attempt);
  // The call has ended. UNAVAILABLE says that the server is down, until a check says otherwise;
  // true then.
  bool End(Server& server, const std::shared_ptr<Attempt>& attempt, const absl::Status& status);

  // What a check of its health gave. Abandons the calls of a silent one.
  void Observe(Server& server, const absl::StatusOr<HealthStatus>& health);

  std::vector<std::shared_ptr<Server>> servers() const;
  std::vector<ServerCounts> counts() const;
  // Waits until a server says that it serves (true), all have been asked and none does, or the time
  // is over.
  bool WaitUntilServing(TimePoint deadline) const;
  // Why no call can be made: UNAVAILABLE, with what is known of each server.
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
