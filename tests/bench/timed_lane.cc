#include "tests/bench/timed_lane.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace normd {

TimedLane::TimedLane(std::unique_ptr<Lane> inner, const Times& times)
    : LaneAround(std::move(inner)), times_(times), begin_(SteadyClock().Now()), free_(begin_) {}

absl::Status TimedLane::Execute(std::unique_ptr<Batch> batch) {
  // From the arrival and not from now: that this thread woke late for the batch before, or was late
  // to take this one, is no service time.
  TimePoint from = free_;
  for (const auto& request : batch->requests) from = std::max(from, request->admitted);
  if (times_.period > Duration{0}) {
    const Duration within = (from - begin_) % times_.period;
    if (within < times_.pause) from += times_.pause - within;
  }
  free_ = from + times_.service_time;
  std::this_thread::sleep_until(free_);
  return inner().Execute(std::move(batch));
}

}  // namespace normd
