// A load run in simulated time, on one thread: time moves when the run waits, from one event to the
// next.

#ifndef NORMD_TESTS_CLIENT_LOAD_SIMULATION_H_
#define NORMD_TESTS_CLIENT_LOAD_SIMULATION_H_

#include <functional>
#include <map>
#include <vector>

#include "client/load/pacer.h"
#include "client/load/sender.h"

namespace normd::load {

// Not thread-safe.
class Simulation final : public Pacer {
 public:
  TimePoint Now() const override { return now_; }
  // Runs the next event if it is due by then, and otherwise moves the time to `until`. Waiting for
  // ever without an event to come ends the program: the run would hang.
  void WaitUntil(TimePoint until) override;
  void Wake() override {}

  // Runs `event` at `time`; events of the same time in the order of their calls.
  void At(TimePoint time, std::function<void()> event);
  // The wait that would end at or after `time` ends late by `delay`.
  void OversleepAt(TimePoint time, Duration delay);

 private:
  TimePoint now_{};
  std::multimap<TimePoint, std::function<void()>> events_;
  TimePoint oversleep_at_ = kNever;
  Duration oversleep_by_{0};
};

// Serves one request at a time, in the order of arrival, each for `service_time`; begins none while
// it is stalled.
class SimulatedServer final : public Sender {
 public:
  SimulatedServer(Simulation& simulation, Duration service_time)
      : simulation_(simulation), service_time_(service_time) {}

  void Send(const Outgoing& request, Done done) override;

  // Begins no service within [begin, end).
  void Stall(TimePoint begin, TimePoint end) { stalls_.emplace_back(begin, end); }
  // Answers of requests sent before `time` take `service_time`.
  void SetServiceTimeBefore(TimePoint time, Duration service_time) {
    slow_until_ = time;
    slow_service_time_ = service_time;
  }
  // Every request fails with this code.
  void FailWith(absl::StatusCode code) { code_ = code; }

  struct Sent {
    TimePoint time;
    Outgoing request;
  };
  const std::vector<Sent>& sent() const { return sent_; }
  int max_outstanding() const { return max_outstanding_; }

 private:
  Simulation& simulation_;
  const Duration service_time_;
  TimePoint slow_until_{};
  Duration slow_service_time_{0};
  absl::StatusCode code_ = absl::StatusCode::kOk;
  std::vector<std::pair<TimePoint, TimePoint>> stalls_;
  TimePoint free_{};
  std::vector<Sent> sent_;
  int outstanding_ = 0;
  int max_outstanding_ = 0;
};

}  // namespace normd::load

#endif  // NORMD_TESTS_CLIENT_LOAD_SIMULATION_H_
