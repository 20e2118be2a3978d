// Durations and rates in the reports' format.

#ifndef NORMD_CLIENT_NORMLOAD_UNITS_H_
#define NORMD_CLIENT_NORMLOAD_UNITS_H_

#include <chrono>

#include "base/clock.h"

namespace normd::load {

inline double Seconds(Duration d) { return std::chrono::duration<double>(d).count(); }
inline double Milliseconds(Duration d) {
  return std::chrono::duration<double, std::milli>(d).count();
}
inline double Microseconds(Duration d) {
  return std::chrono::duration<double, std::micro>(d).count();
}
// 0 if no time has passed.
inline double PerSecond(double amount, Duration elapsed) {
  return elapsed > Duration{0} ? amount / Seconds(elapsed) : 0;
}

}  // namespace normd::load

#endif  // NORMD_CLIENT_NORMLOAD_UNITS_H_
