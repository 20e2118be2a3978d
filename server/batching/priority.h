// A request's urgency, from its client's point of view.

#pragma once

#include <cstddef>

namespace normd {

enum class Priority { kHigh, kNormal, kLow };
inline constexpr std::size_t kPriorityCount = 3;

}  // namespace normd
