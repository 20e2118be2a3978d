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

// The state of a server, from the best to the worst.
enum class ServerState {
  kServing,     // It reports that it serves.
  kUnknown,     // It has not been asked yet.
  kSilent,      // It does not answer in time: it hangs, or the network does.
  kNotServing,  // It drains, or cannot compute.
  kDown,        // It cannot be reached.
};
const char* Name(ServerState state);

struct Candidate {
  ServerState state = ServerState::kUnknown;
  int outstanding = 0;  // Calls that it has not answered.
};

// Pure but for its turn. Not thread-safe.
class Picker {
 public:
  // The first turn goes to server `first_turn` modulo the number of servers, so that clients that
  // start together do not go round in step.
  explicit Picker(BalancePolicy policy, std::size_t first_turn = 0)
      : policy_(policy), turn_(first_turn) {}

  // The server for a call, among those in the best state that any has: the next in turn, or the one
  // with the fewest calls, among equals the next in turn. A silent server is picked only if none is
  // better, and one that does not serve or is down never; then nullopt. `avoid`, which has failed
  // the call before, is picked only if no other in its state is left.
  std::optional<std::size_t> Pick(absl::Span<const Candidate> candidates,
                                  std::optional<std::size_t> avoid = std::nullopt);

 private:
  const BalancePolicy policy_;
  std::size_t turn_;
};

}  // namespace normd::client

#endif  // NORMD_CLIENT_FLEET_BALANCE_H_
