#include "client/normload/plane_flags.h"

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

}  // namespace normd::load
