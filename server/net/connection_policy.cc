#include "server/net/connection_policy.h"

#include <algorithm>

namespace normd {
namespace {

constexpr std::int64_t kManyConnections = 10000;

}  // namespace

ConnectionLimits DecideLimits(std::int64_t wanted_connections, std::int64_t wanted_peer_connections,
                              std::int64_t descriptor_limit, std::int64_t open_descriptors) {
  const std::int64_t room =
      (descriptor_limit - open_descriptors - kReservedDescriptors) / kDescriptorsPerConnection;
  ConnectionLimits limits;
  limits.connections = wanted_connections > 0 ? wanted_connections : kManyConnections;
  limits.connections = std::max<std::int64_t>(std::min(limits.connections, room), 1);
  limits.peer_connections =
      wanted_peer_connections > 0 ? wanted_peer_connections : (3 * limits.connections + 3) / 4;
  limits.peer_connections = std::min(limits.peer_connections, limits.connections);
  return limits;
}

Taking DecideTaking(const ConnectionLimits& limits, std::int64_t connections,
                    std::int64_t peer_connections) {
  if (connections >= limits.connections) return Taking::kFull;
  if (peer_connections >= limits.peer_connections) return Taking::kPeerFull;
  return Taking::kTake;
}

bool DecideRoom(const ConnectionLimits& limits, std::int64_t connections, bool had_room) {
  if (connections >= limits.connections) return false;
  return had_room || connections < std::max<std::int64_t>(limits.connections * 9 / 10, 1);
}

int SuspiciousMillis(std::int64_t process_bytes) {
  constexpr std::int64_t kBytesPerMilli = std::int64_t{64} << 20;
  constexpr std::int64_t kMost = 10;
  if (process_bytes == 0) return kMost;
  return static_cast<int>(std::clamp<std::int64_t>(process_bytes / kBytesPerMilli, 1, kMost));
}

}  // namespace normd
