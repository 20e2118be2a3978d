#include "tests/bench/sleeping_lane.h"

#include <cmath>
#include <thread>
#include <utility>

namespace normd {

SleepingLane::SleepingLane(std::unique_ptr<Lane> inner, const Times& times, std::uint64_t seed)
    : LaneAround(std::move(inner)), times_(times), random_(seed) {}

absl::Status SleepingLane::Execute(std::unique_ptr<Batch> batch) {
  const TimePoint begun = SteadyClock().Now();
  const Duration mean =
      times_.batch + times_.request * static_cast<Duration::rep>(batch->requests.size());
  const double deviation = -std::log1p(-random_.NextDouble()) - 1;
  std::this_thread::sleep_until(begun + Duration(std::llround(static_cast<double>(mean.count()) *
                                                              (1 + times_.jitter * deviation))));
  const Duration slept = SteadyClock().Now() - begun;
  for (std::unique_ptr<Request>& request : batch->requests) {
    request->done = [slept, done = std::move(request->done)](Completion&& completion) mutable {
      completion.stages[Stage::kCompute] += slept;
      std::move(done)(std::move(completion));
    };
  }
  return inner().Execute(std::move(batch));
}

}  // namespace normd
