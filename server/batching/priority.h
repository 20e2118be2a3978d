// How urgent a request is, in its client's eyes.

#ifndef NORMD_SERVER_BATCHING_PRIORITY_H_
#define NORMD_SERVER_BATCHING_PRIORITY_H_

#include <cstddef>

namespace normd {

enum class Priority { kHigh, kNormal, kLow };
inline constexpr std::size_t kPriorityCount = 3;

}  // namespace normd

#endif  // NORMD_SERVER_BATCHING_PRIORITY_H_
