// A client's choice among thousands of servers.

#ifndef NORMD_CLIENT_CAPACITY_BALANCER_H_
#define NORMD_CLIENT_CAPACITY_BALANCER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "client/fleet/balance.h"

namespace normd::capacity {

// Picks what client::Picker picks, of servers that serve or are down, and keeps count of the calls.
// Picker looks at each server, which is right for the tens that a client has; this keeps those with
// equally many calls in a set of bits, so that a pick among thousands takes a few words' look. Not
// thread-safe.
class Balancer {
 public:
  // All servers are up. The first turn is that of server `first`.
  Balancer(client::BalancePolicy policy, std::size_t servers, std::size_t first = 0);

  // Another than `avoid`, if any is up. nullopt: none is up.
  std::optional<std::size_t> Pick(std::optional<std::size_t> avoid = std::nullopt);
  void Begin(std::size_t server) { Move(server, outstanding_[server] + 1); }
  // After Begin.
  void End(std::size_t server) { Move(server, outstanding_[server] - 1); }
  // One that is down keeps the calls it has, and gets no more.
  void SetUp(std::size_t server, bool up);

 private:
  // Servers that are up and have equally many calls.
  struct Level {
    std::vector<std::uint64_t> bits;
    std::size_t members = 0;
  };

  std::size_t LevelOf(std::size_t server) const {
    return policy_ == client::BalancePolicy::kLeastOutstanding ? outstanding_[server] : 0;
  }
  void Enter(std::size_t server);
  void Leave(std::size_t server);
  void Move(std::size_t server, std::uint32_t outstanding);
  // The next member in turn but `avoid`.
  std::optional<std::size_t> Next(const Level& level, std::optional<std::size_t> avoid) const;

  const client::BalancePolicy policy_;
  const std::size_t servers_;
  std::size_t turn_;
  std::size_t lowest_ = 0;  // No level below it has members.
  std::vector<std::uint32_t> outstanding_;
  std::vector<bool> up_;
  std::vector<Level> levels_;
};

}  // namespace normd::capacity

#endif  // NORMD_CLIENT_CAPACITY_BALANCER_H_
