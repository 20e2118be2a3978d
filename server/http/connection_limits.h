// Decides which connection is dropped when there are too many: a pure function.

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

// In the order in which they are dropped.
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
// is room. A newcomer always gets a place, so holding connections keeps nobody out: neither other
// peers nor its own address. If the newcomer's peer has as many as a peer may have, one of its own
// is dropped, else one of the peer with most. Among these the first phase goes first, then the
// oldest.
std::optional<std::size_t> MakesRoom(absl::Span<const HeldConnection> held, absl::string_view peer,
                                     const HttpConnectionLimits& limits);

}  // namespace normd

#endif  // NORMD_SERVER_HTTP_CONNECTION_LIMITS_H_
