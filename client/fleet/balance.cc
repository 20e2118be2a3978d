#include "client/fleet/balance.h"

#include <tuple>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace normd::client {

absl::StatusOr<BalancePolicy> ParseBalancePolicy(absl::string_view text) {
  if (text == "round_robin") return BalancePolicy::kRoundRobin;
  if (text == "least_outstanding") return BalancePolicy::kLeastOutstanding;
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text, "\", wanted round_robin or least_outstanding"));
}

const char* Name(ServerState state) {
  switch (state) {
    case ServerState::kServing: return "serving";
    case ServerState::kUnknown: return "not asked yet";
    case ServerState::kSilent: return "silent";
    case ServerState::kNotServing: return "not serving";
    case ServerState::kDown: return "down";
  }
  return "unknown";
}

std::optional<std::size_t> Picker::Pick(absl::Span<const Candidate> candidates,
                                        std::optional<std::size_t> avoid) {
  const std::size_t count = candidates.size();
  std::optional<std::size_t> best;
  const auto rank = [&](std::size_t i) {
    const int calls = policy_ == BalancePolicy::kLeastOutstanding ? candidates[i].outstanding : 0;
    return std::make_tuple(candidates[i].state, i == avoid, calls);
  };
  for (std::size_t step = 0; step < count; ++step) {
    const std::size_t i = (turn_ % count + step) % count;
    if (candidates[i].state >= ServerState::kNotServing) continue;
    if (!best || rank(i) < rank(*best)) best = i;
  }
  if (best) turn_ = (*best + 1) % count;
  return best;
}

}  // namespace normd::client
