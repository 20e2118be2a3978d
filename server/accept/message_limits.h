// The sizes of messages, whatever their protocol.

#ifndef NORMD_SERVER_ACCEPT_MESSAGE_LIMITS_H_
#define NORMD_SERVER_ACCEPT_MESSAGE_LIMITS_H_

#include <cstdint>

namespace normd {

// The bytes of a message beside its tensor, at most. Over gRPC a larger one is refused, with
// RESOURCE_EXHAUSTED and without a retry hint; between the two limits, the service answers
// INVALID_ARGUMENT. Over HTTP each larger one is refused with 413.
inline constexpr std::int64_t kMaxRequestOverheadBytes = 4096;

// A control request is a name and a number.
inline constexpr std::int64_t kMaxControlBytes = 4096;

}  // namespace normd

#endif  // NORMD_SERVER_ACCEPT_MESSAGE_LIMITS_H_
