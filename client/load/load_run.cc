#include "client/load/load_run.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"

namespace normd::load {
namespace {

constexpr int kMaxWorkers = 64;

// The statistics of some callers. Callers of one worker contend for its lock only when they send or
// receive at the same moment.
struct alignas(64) Worker {
  explicit Worker(std::uint64_t seed) : random(seed) {}

  mutable Mutex mutex;
  Measurement measured ABSL_GUARDED_BY(mutex);
  client::SplitMix64 random ABSL_GUARDED_BY(mutex);
};

// A request in flight. In a closed loop a caller reuses one; in an open loop each request has its
// own.
struct Call {
  Worker* worker = nullptr;
  std::uint64_t caller = 0;
  const Item* item = nullptr;
  SendTimes times;
  bool measure = false;
};

}  // namespace

struct LoadRun::Impl {
  Impl(LoadOptions o, const Workload& w, Sender& s, Pacer& p)
      : options(std::move(o)),
        refill_at(options.max_inflight - options.max_inflight / 16),
        workload(w),
        sender(s),
        pacer(p) {
    const int wanted = options.arrivals ? kMaxWorkers : options.concurrency;
    client::SplitMix64 seeds(options.seed);
    for (int i = 0; i < std::clamp(wanted, 1, kMaxWorkers); ++i) {
      workers.push_back(std::make_unique<Worker>(seeds.Next()));
    }
  }

  void RunClosed();
  void RunOpen();
  // Sends the caller's next request, or ends the caller.
  void SendNext(Call& call);
  Outgoing Prepare(Call& call);
  void Record(const Call& call, const Outcome& outcome);
  // Counts a response, or the end of a caller; the last access to this object and to the pacer. Run
  // may return, and both may end, as soon as `inflight` and `leaving` are 0.
  void Leave() {
    leaving.fetch_add(1, std::memory_order_relaxed);
    const std::int64_t before = inflight.fetch_sub(1, std::memory_order_acq_rel);
    if (before == 1 || before == refill_at) pacer.Wake();
    leaving.fetch_sub(1, std::memory_order_release);
  }
  // Waits for every response, and until the threads that brought them no longer use this object.
  void WaitForResponses() {
    while (inflight.load(std::memory_order_acquire) > 0) pacer.WaitUntil(kNever);
    while (leaving.load(std::memory_order_acquire) > 0) std::this_thread::yield();
  }
  // Waits for the time of a request of an open loop, and for room in flight.
  void WaitToSend(TimePoint intended);
  // The number of arrivals from `offset` on whose time is before `end`.
  std::int64_t CountUnsent(std::optional<Duration> offset, TimePoint start);

  LoadOptions options;
  // After waiting for room, sending resumes below this: a wake for each response would cost as much
  // as a small call.
  const std::int64_t refill_at;
  const Workload& workload;
  Sender& sender;
  Pacer& pacer;
  std::vector<std::unique_ptr<Worker>> workers;
  std::vector<Call> callers;  // In a closed loop.

  // Requests that are out; in a closed loop, callers that have not ended. The thread that brings it
  // to zero releases all records, and Run acquires them.
  std::atomic<std::int64_t> inflight{0};
  // Threads inside Leave. Incremented before `inflight` falls, so a thread that sees 0 there sees
  // them here.
  std::atomic<std::int64_t> leaving{0};
  std::atomic<std::int64_t> unsent{0};
  std::atomic<std::int64_t> sent{0};  // Counted if responses are verified.
  // Set before the first request, and published to Snapshot by `started`.
  std::optional<StopRule> rule;
  std::atomic<bool> started{false};
  std::atomic<StopReason> asked{StopReason::kNone};  // Set by Stop.
};

LoadRun::LoadRun(LoadOptions options, const Workload& workload, Sender& sender, Pacer& pacer)
    : impl_(std::make_unique<Impl>(std::move(options), workload, sender, pacer)) {}
LoadRun::~LoadRun() = default;

void LoadRun::Run() {
  impl_->rule.emplace(impl_->options.stop, impl_->pacer.Now());
  impl_->started.store(true);
  if (const StopReason asked = impl_->asked.load(); asked != StopReason::kNone) {
    impl_->rule->Stop(asked);
  }
  if (impl_->options.arrivals) {
    impl_->RunOpen();
  } else {
    impl_->RunClosed();
  }
  impl_->WaitForResponses();
}

void LoadRun::Impl::RunClosed() {
  callers.resize(static_cast<std::size_t>(options.concurrency));
  inflight.store(options.concurrency);
  for (std::size_t i = 0; i < callers.size(); ++i) {
    callers[i].worker = workers[i % workers.size()].get();
    callers[i].caller = i;
    SendNext(callers[i]);
  }
}

void LoadRun::Impl::SendNext(Call& call) {
  const TimePoint now = pacer.Now();
  const StopRule::Decision decision = rule->Admit(now);
  if (decision == StopRule::Decision::kStop) return Leave();
  call.times = {now, now};
  call.measure = decision == StopRule::Decision::kMeasure;
  sender.Send(Prepare(call), [this, &call](const Outcome& outcome) {
    Record(call, outcome);
    SendNext(call);
  });
}

void LoadRun::Impl::WaitToSend(TimePoint intended) {
  const TimePoint until = std::min(intended, rule->end());
  while (pacer.Now() < until && !rule->stopped()) pacer.WaitUntil(until);
  if (inflight.load(std::memory_order_acquire) < options.max_inflight) return;
  while (inflight.load(std::memory_order_acquire) >= refill_at && !rule->stopped()) {
    pacer.WaitUntil(kNever);
  }
}

std::int64_t LoadRun::Impl::CountUnsent(std::optional<Duration> offset, TimePoint start) {
  std::int64_t count = 0;
  for (; offset && start + *offset < rule->end(); offset = options.arrivals->Next()) ++count;
  return count;
}

void LoadRun::Impl::RunOpen() {
  // A backlog at the end of the run is worked off at most this long; the rest is counted.
  constexpr Duration kBacklogGrace = std::chrono::milliseconds(100);
  const TimePoint start = pacer.Now();
  for (std::uint64_t index = 0;; ++index) {
    const std::optional<Duration> offset = options.arrivals->Next();
    if (!offset) return rule->Stop(StopReason::kArrivalsEnded);
    const TimePoint intended = start + *offset;
    WaitToSend(intended);
    if (rule->end() != kNever && pacer.Now() >= rule->end() + kBacklogGrace) {
      rule->Stop(StopReason::kDuration);
      unsent.store(CountUnsent(offset, start), std::memory_order_relaxed);
    }
    const StopRule::Decision decision = rule->Admit(intended);
    if (decision == StopRule::Decision::kStop) return;

    auto call = std::make_unique<Call>();
    call->worker = workers[index % workers.size()].get();
    call->caller = index;
    call->times = {intended, pacer.Now()};
    call->measure = decision == StopRule::Decision::kMeasure;
    inflight.fetch_add(1, std::memory_order_relaxed);
    const Outgoing request = Prepare(*call);
    sender.Send(request, [this, call = std::move(call)](const Outcome& outcome) {
      Record(*call, outcome);
      Leave();
    });
  }
}

Outgoing LoadRun::Impl::Prepare(Call& call) {
  MutexLock lock(call.worker->mutex);
  call.item = &workload.Pick(call.worker->random);
  Outgoing request;
  request.item = call.item;
  request.caller = call.caller;
  request.verify = options.verify_every > 0 &&
                   sent.fetch_add(1, std::memory_order_relaxed) % options.verify_every == 0;
  if (options.cancel_share > 0 && call.worker->random.NextDouble() < options.cancel_share) {
    request.cancel_after = options.cancel_after;
  }
  return request;
}

void LoadRun::Impl::Record(const Call& call, const Outcome& outcome) {
  rule->Observe(outcome.code);
  MutexLock lock(call.worker->mutex);
  if (call.measure) {
    call.worker->measured.Record(*call.item, call.times, outcome);
  } else {
    ++call.worker->measured.warmup_requests;
  }
}

void LoadRun::Stop(StopReason reason) {
  impl_->asked.store(reason);
  // Run reads `asked` after it has set `started`, so one of the two sees the other's write.
  if (impl_->started.load()) impl_->rule->Stop(reason);
  impl_->pacer.Wake();
}

LoadResult LoadRun::Snapshot() const {
  LoadResult result;
  for (const auto& worker : impl_->workers) {
    MutexLock lock(worker->mutex);
    result.measured.Merge(worker->measured);
  }
  if (!impl_->started.load()) return result;
  result.reason = impl_->rule->reason();
  result.unsent = impl_->unsent.load(std::memory_order_relaxed);
  result.inflight = impl_->inflight.load(std::memory_order_acquire);
  const TimePoint end = result.inflight > 0 ? impl_->pacer.Now() : result.measured.last_received;
  result.elapsed = std::max(Duration{0}, end - impl_->rule->measure_begin());
  return result;
}

}  // namespace normd::load
