// The sizes of messages, whatever their protocol.

#pragma once

#include <cstdint>

namespace normd {

// The bytes of a message beside its tensor, at most. gRPC refuses a larger one unread, with
// RESOURCE_EXHAUSTED and without a retry hint; between the two limits, the service answers
// INVALID_ARGUMENT. Over HTTP each larger one is refused with 413.
inline constexpr std::int64_t kMaxRequestOverheadBytes = 4096;

// A control request is a name and a number.
inline constexpr std::int64_t kMaxControlBytes = 4096;

}  // namespace normd
