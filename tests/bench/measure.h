// What benchmarks of the path compute alike.

#ifndef NORMD_TESTS_BENCH_MEASURE_H_
#define NORMD_TESTS_BENCH_MEASURE_H_

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace normd {

// The upper one of two in the middle. `values` are not empty.
double Median(std::vector<double> values);

// That of a field over turns.
template <typename Sample, typename Base>
double Median(const std::vector<Sample>& turns, double Base::*field) {
  std::vector<double> values;
  for (const Sample& turn : turns) values.push_back(turn.*field);
  return Median(std::move(values));
}

// Turn by turn, so that what slows the machine for a while slows both.
template <typename Sample, typename Base>
std::vector<double> Ratios(const std::vector<Sample>& turns, const std::vector<Sample>& others,
                           double Base::*field) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < turns.size(); ++i) {
    ratios.push_back(turns[i].*field / others[i].*field);
  }
  return ratios;
}

// The processor time of this process up to now, the system's for it included.
double CpuMicroseconds();

struct BenchTurn {
  double calls = 0;
  double calls_per_second = 0;
  double p50_us = 0;
  double p99_us = 0;
  double cpu_us = 0;  // For one call, in this process.
};
// So many clients, each in a thread of its own, make the call of their number again and again until
// `length` is over, once at least.
BenchTurn TakeTurn(std::size_t clients, absl::Duration length,
                   absl::FunctionRef<void(std::size_t)> call);

// `--sizes` as numbers of bytes. Ends the process if one is not a multiple of `unit`.
std::vector<std::int64_t> SizesOrExit(const std::vector<std::string>& sizes, std::int64_t unit);

template <typename T>
T ValueOrExit(absl::StatusOr<T> result) {
  if (result.ok()) return *std::move(result);
  std::fprintf(stderr, "benchmark: %s\n", result.status().ToString().c_str());
  std::exit(1);
}

}  // namespace normd

#endif  // NORMD_TESTS_BENCH_MEASURE_H_
