// A clock that moves when a test moves it.

#ifndef NORMD_TESTS_SUPPORT_FAKE_CLOCK_H_
#define NORMD_TESTS_SUPPORT_FAKE_CLOCK_H_

#include <atomic>
#include <chrono>
#include <cstdint>

#include "base/clock.h"

namespace normd {

// Thread-safe. Begins at one hour, so that tests can speak of times before "now".
class FakeClock final : public Clock {
 public:
  TimePoint Now() const override { return TimePoint(Duration(nanoseconds_.load())); }
  void Advance(Duration duration) { nanoseconds_ += duration.count(); }

 private:
  std::atomic<Duration::rep> nanoseconds_{Duration(std::chrono::hours(1)).count()};
};

// Advances by one microsecond with each reading, so that the number of readings between two counts.
// Thread-safe.
class TickingClock final : public Clock {
 public:
  TimePoint Now() const override { return TimePoint(std::chrono::microseconds(++microseconds_)); }

 private:
  mutable std::atomic<std::int64_t> microseconds_{3'600'000'000};
};

}  // namespace normd

#endif  // NORMD_TESTS_SUPPORT_FAKE_CLOCK_H_
