// The flags for how tensors reach the server and return, and for balancing several servers.

#ifndef NORMD_CLIENT_NORMLOAD_SERVER_FLAGS_H_
#define NORMD_CLIENT_NORMLOAD_SERVER_FLAGS_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/fleet/fleet_client.h"
#include "flags/flag_set.h"

namespace normd::load {

enum class Plane {
  kGrpc,        // In messages over TCP.
  kUnixSocket,  // In messages over a unix socket.
  kShared,      // In memory that both have mapped; messages name it.
  kDevice,      // In memory of a CUDA device, likewise.
};
// The flag's and the reports' name: "grpc", "uds", "shm", "cuda".
const char* Name(Plane plane);
// The plane of that name; kGrpc for any other text.
Plane PlaneOf(const std::string& name);

// The properties of the calls that shared memory may not support.
struct PlannedCalls {
  std::string server;     // The value of --server.
  bool balanced = false;  // Over several servers.
  std::string stream;     // A streamed entry of the mix; empty: none.
  double cancel_share = 0;
  int max_sending = 0;
};

struct PlaneFlags {
  std::string name;     // Empty: --server and --shared_memory decide.
  std::string address;  // The server's --shared_memory_listen.
  int device = 0;       // With "cuda": the device of the tensors.

  // The flags borrow this object.
  void AddTo(FlagSet& flags);
  // InvalidArgument names the flag, what came and what was wanted: for an unknown plane, for one
  // that does not fit the server's address, and for calls that it does not support.
  absl::StatusOr<Plane> Make(const PlannedCalls& calls) const;
};

// For balancing several servers.
struct BalanceFlags {
  std::string policy;  // Empty: none for one server, round_robin for several.
  client::BalancePolicy balance = client::BalancePolicy::kRoundRobin;  // That of `policy`.
  int max_attempts = 0;  // 0: one for one server, the library's default for several.
  double retry_tokens = client::RetryPolicy().max_tokens;
  absl::Duration hedge_after = absl::ZeroDuration();
  absl::Duration resolve_interval = absl::Seconds(30);

  // The flags borrow this object.
  void AddTo(FlagSet& flags);
  // How `server`, the value of --server, is balanced; nullopt if it is one server and no flag asks
  // for balancing. InvalidArgument names the flag, what came and what was wanted.
  absl::StatusOr<std::optional<client::FleetOptions>> Make(const std::string& server) const;
};

}  // namespace normd::load

#endif  // NORMD_CLIENT_NORMLOAD_SERVER_FLAGS_H_
