#include "tests/client/load/simulation.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>

namespace normd::load {

void Simulation::WaitUntil(TimePoint until) {
  if (!events_.empty() && events_.begin()->first <= until) {
    auto node = events_.extract(events_.begin());
    now_ = std::max(now_, node.key());
    node.mapped()();
    return;
  }
  if (until == kNever) {
    std::fputs("the run waits for ever and no event is to come\n", stderr);
    std::abort();
  }
  now_ = std::max(now_, until);
  if (now_ >= oversleep_at_) {
    now_ += oversleep_by_;
    oversleep_at_ = kNever;
  }
}

void Simulation::At(TimePoint time, std::function<void()> event) {
  events_.emplace(time, std::move(event));
}

void Simulation::OversleepAt(TimePoint time, Duration delay) {
  oversleep_at_ = time;
  oversleep_by_ = delay;
}

void SimulatedServer::Send(const Outgoing& request, Done done) {
  const TimePoint now = simulation_.Now();
  sent_.push_back({now, request});
  max_outstanding_ = std::max(max_outstanding_, ++outstanding_);
  TimePoint begin = std::max(now, free_);
  for (const auto& [from, to] : stalls_) {
    if (begin >= from && begin < to) begin = to;
  }
  free_ = begin + (now < slow_until_ ? slow_service_time_ : service_time_);
  // shared: std::function copies what it holds.
  auto answer = std::make_shared<Done>(std::move(done));
  const bool cancelled = request.cancel_after && now + *request.cancel_after < free_;
  simulation_.At(cancelled ? now + *request.cancel_after : free_, [this, answer, cancelled] {
    --outstanding_;
    Outcome outcome;
    outcome.cancelled = cancelled;
    outcome.code = cancelled ? absl::StatusCode::kCancelled : code_;
    outcome.received = simulation_.Now();
    std::move (*answer)(outcome);
  });
}

}  // namespace normd::load
