// Who has to go when there are too many connections: a pure function.

#ifndef NORMD_SERVER_HTTP_CONNECTION_LIMITS_H_
#define NORMD_SERVER_HTTP_CONNECTION_LIMITS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace normd {

struct HttpConnectionLimits {
  std::size_t all = 64;
  std::size_t of_peer = 16;
};

// In the order in which they go.
enum class ConnectionPhase {
  kReading,     // Has not sent its request.
  kEnding,      // Its response is with the kernel.
  kResponding,  // Waits for its response, or takes it.
};

struct HeldConnection {
  std::string peer;
  ConnectionPhase phase = ConnectionPhase::kReading;
  std::uint64_t number = 0;  // They count up as connections come.
};

// The connection of `held`, by index, that makes room for a new one from `peer`; nullopt when there
// is room. A newcomer always gets a place, so whoever holds connections keeps nobody out: not other
// peers, and not its own address. Where the newcomer's peer has as many as a peer may have, one of
// its own goes, else one of the peer that has most. Of these the first phase goes first, then the
// oldest.
std::optional<std::size_t> MakesRoom(absl::Span<const HeldConnection> held, absl::string_view peer,
                                     const HttpConnectionLimits& limits);

}  // namespace normd

#endif  // NORMD_SERVER_HTTP_CONNECTION_LIMITS_H_
