// Time as the server sees it: monotonic, and injected so that tests move it by hand.

#ifndef NORMD_BASE_CLOCK_H_
#define NORMD_BASE_CLOCK_H_

#include <chrono>

namespace normd {

using Duration = std::chrono::nanoseconds;
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;

inline constexpr TimePoint kNever = TimePoint::max();

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint Now() const = 0;
};

class SteadyClock final : public Clock {
 public:
  TimePoint Now() const override { return std::chrono::steady_clock::now(); }
};

}  // namespace normd

#endif  // NORMD_BASE_CLOCK_H_
