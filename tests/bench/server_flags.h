// The flags of benchmarks that serve: how normd computes and batches, by default as its own flags.

#ifndef NORMD_TESTS_BENCH_SERVER_FLAGS_H_
#define NORMD_TESTS_BENCH_SERVER_FLAGS_H_

#include <cstdint>

#include "tests/bench/bench_server.h"

namespace normd {

// What the flags ask for; the model is the caller's.
BenchServerOptions OptionsFromFlags();

// A flag's value, or `value` where the flag says "as normd".
inline std::int64_t FlagOr(std::int64_t flag, std::int64_t value) {
  return flag < 0 ? value : flag;
}

}  // namespace normd

#endif  // NORMD_TESTS_BENCH_SERVER_FLAGS_H_
