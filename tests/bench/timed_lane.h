// A lane whose service time is known, to hold measurements against.

#ifndef NORMD_TESTS_BENCH_TIMED_LANE_H_
#define NORMD_TESTS_BENCH_TIMED_LANE_H_

#include <memory>

#include "base/clock.h"
#include "tests/bench/lane_around.h"

namespace normd {

// Serves each batch for `service_time` and then lets the inner lane compute it, which should take
// far less. Batches that wait follow each other without a gap: that a thread wakes late delays one
// answer and not those after it. Begins none in the first `pause` of every `period`, if that is
// above 0, counted from its own beginning.
class TimedLane final : public LaneAround {
 public:
  struct Times {
    Duration service_time{0};
    Duration pause{0};
    Duration period{0};
  };
  TimedLane(std::unique_ptr<Lane> inner, const Times& times);

  absl::Status Execute(std::unique_ptr<Batch> batch) override;

 private:
  const Times times_;
  const TimePoint begin_;
  TimePoint free_;
};

}  // namespace normd

#endif  // NORMD_TESTS_BENCH_TIMED_LANE_H_
