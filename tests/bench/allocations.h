// Counts what a program allocates, by standing in front of the C library's allocator. Not in a
// sanitized build, where that place is taken: it then counts nothing.

#ifndef NORMD_TESTS_BENCH_ALLOCATIONS_H_
#define NORMD_TESTS_BENCH_ALLOCATIONS_H_

#include <cstdint>

namespace normd {

struct Allocations {
  std::int64_t count = 0;
  std::int64_t bytes = 0;  // As asked for.
};

// The allocations of all threads since the program began, including the libraries'. Thread-safe.
Allocations CountAllocations();

}  // namespace normd

#endif  // NORMD_TESTS_BENCH_ALLOCATIONS_H_
