// What benchmarks of the path compute alike.

#ifndef NORMD_TESTS_BENCH_MEASURE_H_
#define NORMD_TESTS_BENCH_MEASURE_H_

#include <sys/resource.h>

#include <algorithm>
#include <vector>

namespace normd {

// The upper one of two in the middle. `values` are not empty.
inline double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// The processor time of this process up to now, the system's for it included.
inline double CpuMicroseconds() {
  rusage use{};
  getrusage(RUSAGE_SELF, &use);
  const auto us = [](const timeval& t) {
    return 1e6 * static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec);
  };
  return us(use.ru_utime) + us(use.ru_stime);
}

}  // namespace normd

#endif  // NORMD_TESTS_BENCH_MEASURE_H_
