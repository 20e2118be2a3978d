// A lane that takes its time without a processor, as a device does: so that many replicas fit on a
// machine of few cores.

#ifndef NORMD_TESTS_BENCH_SLEEPING_LANE_H_
#define NORMD_TESTS_BENCH_SLEEPING_LANE_H_

#include <cstdint>
#include <memory>

#include "base/clock.h"
#include "client/tensor/random.h"
#include "tests/bench/lane_around.h"

namespace normd {

// Sleeps for (batch + n * request) * (1 + jitter * e) from when it has taken a batch of n, where e
// is exponentially distributed with mean 1, less 1; then lets the inner lane compute it, which
// should take far less. Each request is told of all of it as its compute time, however late this
// thread woke.
class SleepingLane final : public LaneAround {
 public:
  struct Times {
    Duration batch{0};
    Duration request{0};
    double jitter = 0;  // 0 to 1.
  };
  SleepingLane(std::unique_ptr<Lane> inner, const Times& times, std::uint64_t seed);

  absl::Status Execute(std::unique_ptr<Batch> batch) override;

 private:
  const Times times_;
  client::SplitMix64 random_;
};

}  // namespace normd

#endif  // NORMD_TESTS_BENCH_SLEEPING_LANE_H_
