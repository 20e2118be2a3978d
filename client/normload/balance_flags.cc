#include "client/normload/balance_flags.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace normd::load {
namespace {

absl::Status WrongFlag(absl::string_view flag, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("--", flag, ": ", what));
}

}  // namespace

void BalanceFlags::AddTo(FlagSet& flags) {
  flags.Add("balance", &policy, "POLICY",
            "How calls are spread over several servers, which are asked for their health: "
            "round_robin, the default with several, or least_outstanding.");
  flags.Add("max_attempts", &max_attempts, "N",
            "Balanced: how often a call is tried, at other servers if it can be; 0 is 5 with "
            "several servers and 1 with one.");
  flags.Add("retry_tokens", &retry_tokens, "N",
            "Balanced: how many retries there may be at once; ten calls that succeed give one "
            "more.");
  flags.Add("hedge_after", &hedge_after, "DURATION",
            "Balanced: a call without a response for so long also goes to a second server; 0 "
            "never.");
  flags.Add("resolve_interval", &resolve_interval, "DURATION",
            "Balanced: how often the servers' names are resolved anew, 1s or more.");
}

absl::StatusOr<std::optional<client::FleetOptions>> BalanceFlags::Make(
    const std::string& server) const {
  const bool is_several = client::NamesAFleet(server);
  if (max_attempts < 0 || max_attempts > 100) {
    return WrongFlag("max_attempts", absl::StrCat(max_attempts, ", wanted 0 to 100"));
  }
  if (hedge_after < absl::ZeroDuration() || hedge_after > absl::Hours(1)) {
    return WrongFlag("hedge_after",
                     absl::StrCat(absl::FormatDuration(hedge_after), ", wanted 0 to 1h"));
  }
  if (resolve_interval < absl::Seconds(1)) {
    return WrongFlag("resolve_interval",
                     absl::StrCat(absl::FormatDuration(resolve_interval), ", wanted 1s or more"));
  }
  if (policy.empty() && !is_several) {
    if (max_attempts > 1) return WrongFlag("max_attempts", "wanted with several servers");
    if (hedge_after > absl::ZeroDuration()) {
      return WrongFlag("hedge_after", "wanted with several servers");
    }
    return std::nullopt;
  }
  const auto servers = client::ParseServers(server);
  if (!servers.ok()) return servers.status();  // It names the server.
  client::FleetOptions fleet;
  if (!policy.empty()) {
    const auto balance = client::ParseBalancePolicy(policy);
    if (!balance.ok()) return WrongFlag("balance", balance.status().message());
    fleet.balance = *balance;
  }
  if (max_attempts > 0) fleet.retry.max_attempts = max_attempts;
  if (max_attempts == 0 && !is_several) fleet.retry.max_attempts = 1;
  fleet.retry.max_tokens = retry_tokens;
  if (!(retry_tokens >= 0)) {
    return WrongFlag("retry_tokens", absl::StrCat(retry_tokens, ", wanted 0 or more"));
  }
  fleet.hedge_after = absl::ToChronoNanoseconds(hedge_after);
  fleet.resolve_interval = resolve_interval == absl::InfiniteDuration()
                               ? std::chrono::hours(24)
                               : Duration{absl::ToChronoNanoseconds(resolve_interval)};
  return fleet;
}

}  // namespace normd::load
