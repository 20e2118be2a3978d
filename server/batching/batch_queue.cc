#include "server/batching/batch_queue.h"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <chrono>
#include <new>
#include <thread>
#include <utility>

#include "base/mutex.h"
#include "server/batching/waiting_set.h"

namespace normd {
namespace {

void FailExpired(std::vector<std::unique_ptr<Request>> requests) {
  for (std::unique_ptr<Request>& request : requests) {
    absl::Status status = NoMemory();
    try {
      status = WaitedTooLong(*request);
    } catch (const std::bad_alloc&) {
      // Then it ends without the words.
    }
    Fail(std::move(request), std::move(status));
  }
}

}  // namespace

// Sleepers. Takers wait in one of two places. Most wait in `idle` without a time-out. When a line
// is held back for company, one of them (the timer) waits in `timer` until its delay ends, so that
// a delay wakes one thread and not all. The reaper waits in `reaper`. Before it sleeps, a taker
// may spin, waiting for a call; while one does, it is called and no sleeper.
//
// Every change under the lock, a Change, ends with Plan, which says whom to wake so that this
// holds:
// - while a batch may go and a taker sleeps, one taker is on its way (`taker_called`), and every
//   taker plans again before it leaves with its batch, which calls the next one;
// - while a line is held back and a taker sleeps, the timer's time is not later than the line's, or
//   a taker is on its way to become the timer.
// A taker that wakes for whatever reason looks again before it sleeps, so a call that meets a taker
// which is just timing out is not lost.
struct BatchQueue::Impl {
  Impl(BatchQueueOptions options, const Clock& clock_in)
      : clock(clock_in), spin_wait(options.spin_wait), waiting(options, clock_in) {
    // Made while there is memory.
    static_cast<void>(NoMemory());
    static_cast<void>(CancelledByClient());
  }

  struct Wake {
    bool one_idle = false;
    bool timer = false;
    bool reaper = false;
    bool everyone = false;
  };

  // Holds the lock. At its end those whom the change concerns wake, once the lock is released.
  class Change;

  // A request that is to be computed by the thread that brought it.
  struct InlineRun {
    std::unique_ptr<Batch> batch;  // Null: it is not.
    BatchRunner* runner = nullptr;
    std::uint64_t runners_version = 0;
  };

  InlineRun TryTakeInline(std::unique_ptr<Request>& request, TimePoint now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // After a request has run inline: whom to wake to spin for the next.
  Wake PlanSpin(TimePoint now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void Compute(InlineRun run);
  Wake Plan() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  Duration TimeWithoutTaker(TimePoint now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void Send(const Wake& wake);
  void WaitForBatch() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Returns when this taker is called or has spun for long enough.
  void Spin() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void WaitForDeadline() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  bool Finished() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return closed && waiting.size() == 0;
  }
  // The steady clock's time at which `clock` will show `time`.
  TimePoint OnSteadyClock(TimePoint time) const {
    if (time == kNever) return kNever;
    const TimePoint now = clock.Now();
    return time <= now ? TimePoint(std::chrono::steady_clock::now())
                       : TimePoint(std::chrono::steady_clock::now()) + (time - now);
  }

  const Clock& clock;
  const Duration spin_wait;
  mutable Mutex mutex;
  WaitingSet waiting ABSL_GUARDED_BY(mutex);
  bool closed ABSL_GUARDED_BY(mutex) = false;
  int waiting_takers ABSL_GUARDED_BY(mutex) = 0;  // Those that are called included.
  TimePoint without_taker_since ABSL_GUARDED_BY(mutex) = kNever;
  Duration without_taker_before ABSL_GUARDED_BY(mutex){};  // The sum of what is over.
  int idle_takers ABSL_GUARDED_BY(mutex) = 0;
  bool taker_called ABSL_GUARDED_BY(mutex) = false;
  bool taker_spins ABSL_GUARDED_BY(mutex) = false;
  std::atomic<bool> call{false};  // To the one that spins; written under the lock.
  bool has_timer ABSL_GUARDED_BY(mutex) = false;
  TimePoint timer_until ABSL_GUARDED_BY(mutex) = kNever;
  bool reaper_sleeps ABSL_GUARDED_BY(mutex) = false;
  TimePoint reaper_until ABSL_GUARDED_BY(mutex) = kNever;
  // Those that compute nothing now; never reallocated after RunInlineOn.
  std::vector<BatchRunner*> idle_runners ABSL_GUARDED_BY(mutex);
  TimePoint last_inline ABSL_GUARDED_BY(mutex){};  // When the last request ran inline.
  std::uint64_t runners_version ABSL_GUARDED_BY(mutex) = 0;
  CondVar idle;
  CondVar timer;
  CondVar reaper;
  InputStager* stager = nullptr;  // Constant after StageWith.
};

class ABSL_SCOPED_LOCKABLE BatchQueue::Impl::Change {
 public:
  explicit Change(Impl& impl) ABSL_EXCLUSIVE_LOCK_FUNCTION(impl.mutex) : impl_(impl) {
    impl_.mutex.Lock();
  }
  ~Change() ABSL_UNLOCK_FUNCTION() {
    const Wake wake = impl_.Plan();
    impl_.mutex.Unlock();
    impl_.Send(wake);
  }
  Change(const Change&) = delete;
  Change& operator=(const Change&) = delete;

 private:
  Impl& impl_;
};

BatchQueue::Impl::InlineRun BatchQueue::Impl::TryTakeInline(std::unique_ptr<Request>& request,
                                                            TimePoint now) {
  InlineRun run;
  if (!request->may_run_inline || idle_runners.empty()) return run;
  if (taker_spins && !taker_called) return run;  // Awake, and with warm caches.
  run.batch = waiting.TakeInline(request, now);
  if (run.batch == nullptr) return run;
  run.runner = idle_runners.back();
  run.runners_version = runners_version;
  idle_runners.pop_back();
  return run;
}

BatchQueue::Impl::Wake BatchQueue::Impl::PlanSpin(TimePoint now) {
  Wake wake;
  // As soon after the last one, the next is likely to come while somebody spins.
  if (now - std::exchange(last_inline, now) < spin_wait && !taker_spins && !taker_called) {
    wake.one_idle = taker_called = idle_takers > 0;
  }
  return wake;
}

void BatchQueue::Impl::Compute(InlineRun run) {
  absl::Status status;
  try {
    status = run.runner->Execute(std::move(run.batch));
  } catch (const std::bad_alloc&) {
    // The batch is gone, and with it its requests, which have ended their calls. Push has accepted
    // them: it must not fail as if it had not.
  }
  MutexLock lock(mutex);
  // Within what RunInlineOn brought, so that this allocates nothing.
  if (status.ok() && run.runners_version == runners_version) idle_runners.push_back(run.runner);
}

BatchQueue::Impl::Wake BatchQueue::Impl::Plan() {
  Wake wake;
  wake.everyone = Finished();
  const TimePoint next = waiting.NextBatch();
  const bool wants_taker = !taker_called && (next == kAtOnce || (next != kNever && !has_timer));
  if (taker_spins && (wants_taker || wake.everyone)) {
    taker_called = true;
    call.store(true, std::memory_order_relaxed);  // It takes the lock before it reads more.
  } else if (next == kAtOnce && !taker_called) {
    wake.one_idle = idle_takers > 0;
    wake.timer = !wake.one_idle && has_timer;
    taker_called = wake.one_idle || wake.timer;
  } else if (next != kAtOnce && has_timer && next < timer_until) {
    wake.timer = true;
    timer_until = next;  // The timer is on its way to it; no need to call again.
  } else if (next != kAtOnce && next != kNever && !has_timer && !taker_called) {
    wake.one_idle = taker_called = idle_takers > 0;
  }
  if (reaper_sleeps && waiting.NextDeadline() < reaper_until) {
    wake.reaper = true;
    reaper_until = waiting.NextDeadline();
  }
  return wake;
}

// After the lock is released: a thread that wakes finds it free.
void BatchQueue::Impl::Send(const Wake& wake) {
  if (wake.everyone) {
    idle.SignalAll();
    timer.SignalAll();
    reaper.SignalAll();
    return;
  }
  if (wake.one_idle) idle.SignalOne();
  if (wake.timer) timer.SignalOne();
  if (wake.reaper) reaper.SignalOne();
}

Duration BatchQueue::Impl::TimeWithoutTaker(TimePoint now) const {
  return without_taker_before +
         (without_taker_since == kNever ? Duration(0) : now - without_taker_since);
}

void BatchQueue::Impl::WaitForBatch() {
  const TimePoint next = waiting.NextBatch();
  if (next != kNever && !has_timer) {
    has_timer = true;
    timer_until = next;
    timer.WaitUntil(mutex, OnSteadyClock(next));
    has_timer = false;
  } else {
    ++idle_takers;
    idle.Wait(mutex);
    --idle_takers;
  }
  taker_called = false;
}

void BatchQueue::Impl::Spin() {
  taker_spins = true;
  call.store(false, std::memory_order_relaxed);
  mutex.Unlock();
  const auto end = std::chrono::steady_clock::now() + spin_wait;
  while (!call.load(std::memory_order_relaxed) && std::chrono::steady_clock::now() < end) {
    std::this_thread::yield();
  }
  mutex.Lock();
  taker_spins = false;
  taker_called = false;
}

void BatchQueue::Impl::WaitForDeadline() {
  reaper_sleeps = true;
  reaper_until = waiting.NextDeadline();
  reaper.WaitUntil(mutex, OnSteadyClock(reaper_until));
  reaper_sleeps = false;
}

BatchQueue::BatchQueue(BatchQueueOptions options, const Clock& clock)
    : impl_(std::make_unique<Impl>(options, clock)) {}

BatchQueue::~BatchQueue() {
  MutexLock lock(impl_->mutex);
  assert(impl_->Finished() && "BatchQueue destroyed before Close, or with requests in it");
}

absl::Status BatchQueue::Push(std::unique_ptr<Request>& request) {
  // Before the lock, and so before it is known whether there is room.
  if (impl_->stager != nullptr && !request->IsCancelled()) impl_->stager->Stage(*request);
  const TimePoint now = impl_->clock.Now();
  Impl::Wake wake;
  Impl::InlineRun run;
  absl::Status unwanted;
  WaitingSet::Added added;
  {
    MutexLock lock(impl_->mutex);
    if (impl_->closed) {
      request->model->metrics().RecordRejection(Rejection::kDraining);
      return absl::UnavailableError("the server is shutting down");
    }
    // Under the lock: whoever cancels sets the flag before it takes the lock in Cancel, so either
    // Cancel finds the request here or this sees the flag.
    unwanted = CheckWanted(*request, now);
    if (unwanted.ok()) run = impl_->TryTakeInline(request, now);
    if (unwanted.ok() && run.batch == nullptr) {
      ModelMetrics& metrics = request->model->metrics();
      added = impl_->waiting.Add(request, now);
      if (added.rejection.has_value()) metrics.RecordRejection(*added.rejection);
      if (!added.ok()) return added.status;
      wake = impl_->Plan();
    }
    if (run.batch != nullptr) wake = impl_->PlanSpin(now);
  }
  if (!unwanted.ok()) {
    request->admitted = now;
    Fail(std::move(request), std::move(unwanted));
    return absl::OkStatus();
  }
  impl_->Send(wake);
  if (added.dropped != nullptr) Fail(std::move(added.dropped), std::move(added.dropped_with));
  if (run.batch != nullptr) impl_->Compute(std::move(run));
  return absl::OkStatus();
}

void BatchQueue::StageWith(InputStager* stager) { impl_->stager = stager; }

void BatchQueue::RunInlineOn(std::vector<BatchRunner*> runners) {
  MutexLock lock(impl_->mutex);
  impl_->idle_runners = std::move(runners);
  ++impl_->runners_version;
}

BatchQueue::Poll BatchQueue::TryTake() {
  Poll poll;
  std::vector<std::unique_ptr<Request>> expired;
  {
    const Impl::Change change(*impl_);
    const TimePoint now = impl_->clock.Now();
    expired = impl_->waiting.RemoveExpired(now);
    poll.batch = impl_->waiting.TakeBatch(now);
    poll.ask_again = impl_->waiting.NextBatch();
    poll.finished = poll.batch == nullptr && impl_->Finished();
  }
  FailExpired(std::move(expired));
  return poll;
}

std::unique_ptr<Batch> BatchQueue::Take() {
  bool has_spun = impl_->spin_wait <= Duration::zero();
  for (;;) {
    std::unique_ptr<Batch> batch;
    bool finished = false;
    std::vector<std::unique_ptr<Request>> expired;
    {
      const Impl::Change change(*impl_);
      for (;;) {
        const TimePoint now = impl_->clock.Now();
        expired = impl_->waiting.RemoveExpired(now);
        batch = impl_->waiting.TakeBatch(now);
        finished = batch == nullptr && impl_->Finished();
        if (batch != nullptr && impl_->waiting_takers == 0) {
          impl_->without_taker_since = std::min(impl_->without_taker_since, now);
        }
        if (batch != nullptr || finished || !expired.empty()) break;
        impl_->without_taker_before = impl_->TimeWithoutTaker(now);
        impl_->without_taker_since = kNever;
        ++impl_->waiting_takers;
        // A line that is held back needs a timer, not somebody who spins.
        if (!has_spun && !impl_->taker_spins && impl_->waiting.NextBatch() == kNever) {
          has_spun = true;
          impl_->Spin();
        } else {
          impl_->WaitForBatch();
          has_spun = impl_->spin_wait <= Duration::zero();
        }
        --impl_->waiting_takers;
      }
    }
    FailExpired(std::move(expired));
    if (batch != nullptr || finished) return batch;
  }
}

void BatchQueue::Cancel(std::uint64_t request_id) {
  std::unique_ptr<Request> request;
  {
    const Impl::Change change(*impl_);
    request = impl_->waiting.Remove(request_id, impl_->clock.Now());
  }
  if (request != nullptr) {
    Fail(std::move(request), CancelledByClient());
  }
}

TimePoint BatchQueue::ExpireDue() {
  std::vector<std::unique_ptr<Request>> expired;
  TimePoint next = kNever;
  {
    const Impl::Change change(*impl_);
    expired = impl_->waiting.RemoveExpired(impl_->clock.Now());
    next = impl_->waiting.NextDeadline();
  }
  FailExpired(std::move(expired));
  return next;
}

void BatchQueue::Reap() {
  for (bool finished = false; !finished;) {
    std::vector<std::unique_ptr<Request>> expired;
    {
      const Impl::Change change(*impl_);
      for (;;) {
        expired = impl_->waiting.RemoveExpired(impl_->clock.Now());
        finished = impl_->Finished();
        if (finished || !expired.empty()) break;
        impl_->WaitForDeadline();
      }
    }
    FailExpired(std::move(expired));
  }
}

void BatchQueue::EndQueueDelay() {
  const Impl::Change change(*impl_);
  impl_->waiting.EndQueueDelay();
}

void BatchQueue::Close() {
  const Impl::Change change(*impl_);
  impl_->closed = true;
  impl_->waiting.EndQueueDelay();
}

void BatchQueue::Abort(const absl::Status& status) {
  std::vector<std::unique_ptr<Request>> all;
  {
    const Impl::Change change(*impl_);
    all = impl_->waiting.RemoveAll(impl_->clock.Now());
  }
  for (std::unique_ptr<Request>& request : all) Fail(std::move(request), status);
}

std::int64_t BatchQueue::waiting_requests() const {
  MutexLock lock(impl_->mutex);
  return impl_->waiting.size();
}

Duration BatchQueue::TimeWithoutTaker() const {
  MutexLock lock(impl_->mutex);
  return impl_->TimeWithoutTaker(impl_->clock.Now());
}

}  // namespace normd
