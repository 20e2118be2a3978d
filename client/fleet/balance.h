// Which of several servers gets the next call.

#ifndef NORMD_CLIENT_FLEET_BALANCE_H_
#define NORMD_CLIENT_FLEET_BALANCE_H_

#include <cstddef>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace normd::client {

enum class BalancePolicy { kRoundRobin, kLeastOutstanding };

// "round_robin" or "least_outstanding"; InvalidArgument for anything else.
absl::StatusOr<BalancePolicy> ParseBalancePolicy(absl::string_view text);

// What is known of a server, from the best to the worst.
enum class ServerState {
  kServing,     // It says so.
  kUnknown,     // Nobody has asked yet.
  kSilent,      // It does not answer in time: it hangs, or the network does.
  kNotServing,  // It drains, or has nothing to compute on.
  kDown,        // It cannot be reached.
};
const char* Name(ServerState state);

struct Candidate {
  ServerState state = ServerState::kUnknown;
  int outstanding = 0;  // Calls that it has and has not answered.
};

// Pure but for its turn. Not thread-safe.
class Picker {
 public:
  // `first_turn` modulo the number of servers has the first turn: clients that start together
  // should not go round in step.
  explicit Picker(BalancePolicy policy, std::size_t first_turn = 0)
      : policy_(policy), turn_(first_turn) {}

  // The server for a call: among those in the best state that any has, the next in turn or the one
  // with the fewest calls, of equals the next in turn. A silent one is taken only where none is
  // better, one that does not serve or is down never: nothing then. `avoid`, which has failed the
  // call before, is taken only where no other in its state is left.
  std::optional<std::size_t> Pick(absl::Span<const Candidate> candidates,
                                  std::optional<std::size_t> avoid = std::nullopt);

 private:
  const BalancePolicy policy_;
  std::size_t turn_;
};

}  // namespace normd::client

#endif  // NORMD_CLIENT_FLEET_BALANCE_H_
