#include "client/normload/server_flags.h"

#include <chrono>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "flags/flag_checks.h"

namespace normd::load {
namespace {

// Calls over shared memory cannot be of these kinds.
absl::Status CheckShared(Plane plane, const PlannedCalls& calls) {
  if (calls.balanced)
    return FlagSet::Wrong("plane", Name(plane), "one server: a region is one server's");
  if (calls.cancel_share > 0) {
    return FlagSet::Wrong(
        "cancel_share", absl::StrCat(calls.cancel_share),
        "0 with shared memory: the server may still write to the memory of a cancelled call");
  }
  if (calls.max_sending == 0) {
    return FlagSet::Wrong("max_sending", "0",
                          "1 or more with shared memory: each call has its own");
  }
  if (calls.stream.empty()) return absl::OkStatus();
  return FlagSet::Wrong("plane", Name(plane), absl::StrCat("grpc or uds for ", calls.stream));
}

}  // namespace

const char* Name(Plane plane) {
  switch (plane) {
    case Plane::kUnixSocket: return "uds";
    case Plane::kShared: return "shm";
    case Plane::kDevice: return "cuda";
    default: return "grpc";
  }
}

Plane PlaneOf(const std::string& name) {
  for (const Plane plane : {Plane::kUnixSocket, Plane::kShared, Plane::kDevice}) {
    if (name == Name(plane)) return plane;
  }
  return Plane::kGrpc;
}

void PlaneFlags::AddTo(FlagSet& flags) {
  flags.Add("plane", &name, "NAME",
            "How tensors travel: grpc (in messages over TCP), uds (in messages over a unix socket, "
            "the --server), shm (in memory shared with a server on this machine), cuda (in memory "
            "of a CUDA device, shared likewise). Empty: as --server and --shared_memory say.");
  flags.Add(
      "shared_memory", &address, "ADDRESS",
      "For --plane=shm: the server's --shared_memory_listen, such as unix:///run/normd/regions.");
  flags.Add("cuda_device", &device, "N",
            "For --plane=cuda: the device, by the number that client and server have for it.",
            From(0));
}

absl::StatusOr<Plane> PlaneFlags::Make(const PlannedCalls& calls) const {
  const bool is_unix = absl::StartsWith(calls.server, "unix:");
  if (!name.empty() && name != Name(PlaneOf(name))) {
    return FlagSet::Wrong("plane", name, "grpc, uds, shm or cuda");
  }
  if (name == "uds" && !is_unix) {
    return FlagSet::Wrong("plane", name, absl::StrCat("--server=unix:///path, not ", calls.server));
  }
  if (name == "grpc" && is_unix) {
    return FlagSet::Wrong("plane", name, absl::StrCat("uds for ", calls.server));
  }
  if (!name.empty() && name != "shm" && !address.empty()) {
    return FlagSet::Wrong("shared_memory", address, absl::StrCat("nothing with --plane=", name));
  }
  const Plane plane = name == "cuda" ? Plane::kDevice : Plane::kShared;
  if (name != "cuda" && name != "shm" && address.empty()) {
    return is_unix ? Plane::kUnixSocket : Plane::kGrpc;
  }
  if (name == "shm" && address.empty()) {
    return FlagSet::Wrong("shared_memory", "empty",
                          "the server's --shared_memory_listen, such as unix:///run/normd/regions");
  }
  if (absl::Status status = CheckShared(plane, calls); !status.ok()) return status;
  return plane;
}

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
