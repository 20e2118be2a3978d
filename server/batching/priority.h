// A request's urgency, from its client's point of view.

#ifndef NORMD_SERVER_BATCHING_PRIORITY_H_
#define NORMD_SERVER_BATCHING_PRIORITY_H_

#include <cstddef>

namespace normd {

enum class Priority { kHigh, kNormal, kLow };
inline constexpr std::size_t kPriorityCount = 3;

}  // namespace normd

#endif  // NORMD_SERVER_BATCHING_PRIORITY_H_
