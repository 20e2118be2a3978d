// Decides which connections are accepted and how often they are looked at: pure functions of counts
// and limits.

#ifndef NORMD_SERVER_NET_CONNECTION_POLICY_H_
#define NORMD_SERVER_NET_CONNECTION_POLICY_H_

#include <cstdint>

namespace normd {

// A connection takes two descriptors: gRPC's, and the one by which it is watched.
inline constexpr std::int64_t kDescriptorsPerConnection = 2;

// Reserved for model files of a load, three of the metrics port, gRPC's pollers, the accept loop's
// spare one, and one or two connections that are refused.
inline constexpr std::int64_t kReservedDescriptors = 24;

struct ConnectionLimits {
  std::int64_t connections = 0;       // All peers together.
  std::int64_t peer_connections = 0;  // One peer.
};

// The wanted limits (0: as many as there is room for, and three quarters of them), reduced to the
// available descriptors: of `descriptor_limit`, `open_descriptors` are taken or reserved for
// others, and kReservedDescriptors are kept. At least one connection.
ConnectionLimits DecideLimits(std::int64_t wanted_connections, std::int64_t wanted_peer_connections,
                              std::int64_t descriptor_limit, std::int64_t open_descriptors);

enum class Taking { kTake, kFull, kPeerFull };

// Whether to accept a connection beside `connections`, of which `peer_connections` have its peer.
Taking DecideTaking(const ConnectionLimits& limits, std::int64_t connections,
                    std::int64_t peer_connections);

// Whether a new client finds room. After a shortage there is room again only below nine tenths of
// the limit, so that the answer does not flicker.
bool DecideRoom(const ConnectionLimits& limits, std::int64_t connections, bool had_room);

// The interval between checks of connections with much undelivered, of which all together may have
// `process_bytes` (0: no limit): the arrivals in between, about a MiB per millisecond, must be
// small beside the limit.
int SuspiciousMillis(std::int64_t process_bytes);

}  // namespace normd

#endif  // NORMD_SERVER_NET_CONNECTION_POLICY_H_
