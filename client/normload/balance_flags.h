// The flags for balancing several servers.

#ifndef NORMD_CLIENT_NORMLOAD_BALANCE_FLAGS_H_
#define NORMD_CLIENT_NORMLOAD_BALANCE_FLAGS_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/fleet/fleet_client.h"
#include "flags/flag_set.h"

namespace normd::load {

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

#endif  // NORMD_CLIENT_NORMLOAD_BALANCE_FLAGS_H_
