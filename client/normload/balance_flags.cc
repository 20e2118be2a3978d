#include "client/normload/balance_flags.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "flags/flag_checks.h"

namespace normd::load {

void BalanceFlags::AddTo(FlagSet& flags) {
  flags.AddParsed("balance", &policy, &balance, "POLICY",
                  "Balances calls over several servers, whose health it watches: round_robin, the "
                  "default with several, or least_outstanding.",
                  client::ParseBalancePolicy);
  flags.Add("max_attempts", &max_attempts, "N",
            "Balanced: attempts of each call, at other servers if possible; 0: 5 with several "
            "servers, 1 with one.",
            From(0, 100));
  flags.Add("retry_tokens", &retry_tokens, "N",
            "Balanced: the most tokens for retries and hedges; each takes one, and a successful "
            "call adds a tenth.",
            FromReal(0));
  flags.Add(
      "hedge_after", &hedge_after, "DURATION",
      "Balanced: a call without a response for this long also goes to a second server; 0: never.",
      UpTo(absl::Hours(1)));
  flags.Add("resolve_interval", &resolve_interval, "DURATION",
            "Balanced: time after which the servers' names are resolved again, at least 1s.",
            FromTime(absl::Seconds(1)));
}

absl::StatusOr<std::optional<client::FleetOptions>> BalanceFlags::Make(
    const std::string& server) const {
  const bool is_several = client::NamesAFleet(server);
  if (policy.empty() && !is_several) {
    if (max_attempts > 1) {
      return FlagSet::Wrong("max_attempts", absl::StrCat(max_attempts), "several servers");
    }
    if (hedge_after > absl::ZeroDuration()) {
      return FlagSet::Wrong("hedge_after", absl::FormatDuration(hedge_after), "several servers");
    }
    return std::nullopt;
  }
  const auto servers = client::ParseServers(server);
  if (!servers.ok()) return servers.status();  // The status names the server.
  client::FleetOptions fleet;
  fleet.balance = balance;
  if (max_attempts > 0) fleet.retry.max_attempts = max_attempts;
  if (max_attempts == 0 && !is_several) fleet.retry.max_attempts = 1;
  fleet.retry.max_tokens = retry_tokens;
  fleet.hedge_after = absl::ToChronoNanoseconds(hedge_after);
  fleet.resolve_interval = resolve_interval == absl::InfiniteDuration()
                               ? std::chrono::hours(24)
                               : Duration{absl::ToChronoNanoseconds(resolve_interval)};
  return fleet;
}

}  // namespace normd::load
