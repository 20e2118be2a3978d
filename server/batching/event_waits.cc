#include "server/batching/event_waits.h"

#include <pthread.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cassert>

#include "absl/strings/str_cat.h"

namespace normd {
namespace {

constexpr Duration kLeastPause = std::chrono::microseconds(20);
constexpr Duration kMostPause = std::chrono::milliseconds(1);

// Until an event that was not reached is asked for again: what has waited for long may wait a
// little longer, in proportion.
Duration PauseAfter(Duration waited) { return std::clamp(waited / 8, kLeastPause, kMostPause); }

// A duration may be longer than any clock.
TimePoint After(TimePoint now, Duration duration) {
  return duration >= kNever - now ? kNever : now + duration;
}

}  // namespace

EventWaits::EventWaits(SharedDeviceEvents& events, const EventWaitLimits& limits,
                       RegionMetrics& metrics, const Clock& clock)
    : events_(events), limits_(limits), metrics_(metrics), clock_(clock) {}

EventWaits::~EventWaits() {
  {
    MutexLock lock(mutex_);
    assert(waits_.empty() && "EventWaits destroyed with requests in it");
    ending_ = true;
    changed_.SignalOne();
  }
  if (thread_.joinable()) thread_.join();
}

void EventWaits::Start() {
  thread_ = std::thread([this] { Loop(); });
  pthread_setname_np(thread_.native_handle(), "event_waits");
}

TimePoint EventWaits::OnSteadyClock(TimePoint time) const {
  if (time == kNever) return kNever;
  const TimePoint now = clock_.Now();
  const TimePoint steady = std::chrono::steady_clock::now();
  return time <= now ? steady : steady + (time - now);
}

void EventWaits::Loop() {
  // It naps for kLeastPause; the kernel's slack would add fifty microseconds.
  prctl(PR_SET_TIMERSLACK, 1);
  for (;;) {
    const TimePoint next = OnSteadyClock(Poll());
    MutexLock lock(mutex_);
    if (!poll_again_ && !ending_) changed_.WaitUntil(mutex_, next);
    if (ending_) return;
  }
}

void EventWaits::CallPoll() {
  poll_again_ = true;
  changed_.SignalOne();
}

absl::Status EventWaits::CheckRoom(std::uint64_t holder) const {
  if (static_cast<std::int64_t>(waits_.size()) >= limits_.max_requests) {
    return absl::ResourceExhaustedError(
        absl::StrCat("event_handle: ", waits_.size(),
                     " requests wait for events, wanted less (--max_event_waits)"));
  }
  const auto held = by_holder_.find(holder);
  if (held != by_holder_.end() && held->second >= limits_.max_holder_requests) {
    return absl::ResourceExhaustedError(
        absl::StrCat("event_handle: ", held->second,
                     " requests of this client's wait for events, wanted less "
                     "(--max_identity_event_waits)"));
  }
  return absl::OkStatus();
}

absl::Status EventWaits::Hold(std::unique_ptr<Request>& request) {
  const TimePoint now = clock_.Now();
  absl::Status unwanted;
  {
    MutexLock lock(mutex_);
    if (closed_) {
      request->model->metrics().RecordRejection(Rejection::kDraining);
      return absl::UnavailableError("the server is shutting down");
    }
    // Under the lock, as in BatchQueue::Push: either Cancel finds the request or this the flag.
    unwanted = CheckWanted(*request, now);
    if (unwanted.ok()) {
      if (absl::Status room = CheckRoom(request->holder); !room.ok()) {
        metrics_.RecordEventWait(EventWaitEnd::kRefused);
        request->model->metrics().RecordRejection(Rejection::kEventWaits);
        return room;
      }
      // What may throw comes before what it would leave half done.
      std::int64_t& held = by_holder_[request->holder];
      Wait& wait = waits_[request->id];
      ++held;
      wait.awaited = std::move(*request->event);
      wait.since = now;
      wait.until = std::min(
          {request->deadline, After(now, request->queue_timeout), After(now, limits_.max_wait)});
      wait.request = std::move(request);
      metrics_.AddEventWaits(1);
      CallPoll();
      return absl::OkStatus();
    }
  }
  request->admitted = now;
  Fail(std::move(request), std::move(unwanted));
  return absl::OkStatus();
}

std::unique_ptr<Request> EventWaits::Extract(std::map<std::uint64_t, Wait>::iterator at) {
  std::unique_ptr<Request> request = std::move(at->second.request);
  const auto held = by_holder_.find(request->holder);
  if (--held->second == 0) by_holder_.erase(held);
  const Duration waited = clock_.Now() - at->second.since;
  request->stages[Stage::kQueue] += waited;
  request->event_wait = waited;
  // The thread in Poll has other requests to look after.
  request->may_run_inline = false;
  request->event = nullptr;
  // The node moves: nothing is allocated.
  auto wait = waits_.extract(at);
  if (wait.mapped().event != nullptr) ended_.insert(std::move(wait));
  metrics_.AddEventWaits(-1);
  return request;
}

void EventWaits::End(std::vector<Ended> ended) {
  for (Ended& each : ended) {
    // Before the push, which may lead to the response: no counter moves after that.
    metrics_.RecordEventWait(each.how);
    if (each.how == EventWaitEnd::kReached) each.status = push_(each.request);
    if (!each.status.ok()) Fail(std::move(each.request), std::move(each.status));
  }
}

void EventWaits::Cancel(std::uint64_t request_id) {
  std::vector<Ended> ended;
  {
    MutexLock lock(mutex_);
    const auto found = waits_.find(request_id);
    if (found == waits_.end()) return;
    ended.push_back({Extract(found), absl::CancelledError("the client cancelled the request"),
                     EventWaitEnd::kCancelled});
    CallPoll();
  }
  End(std::move(ended));
}

void EventWaits::Close() {
  MutexLock lock(mutex_);
  closed_ = true;
}

void EventWaits::Abort(const absl::Status& status) {
  std::vector<Ended> ended;
  {
    MutexLock lock(mutex_);
    closed_ = true;
    while (!waits_.empty()) {
      ended.push_back({Extract(waits_.begin()), status, EventWaitEnd::kCancelled});
    }
    CallPoll();
  }
  End(std::move(ended));
}

absl::Status EventWaits::TooLate(const Wait& wait) const {
  const Request& request = *wait.request;
  if (wait.until == request.deadline) {
    return absl::DeadlineExceededError(
        "the deadline passed while the request waited for the event of event_handle");
  }
  if (wait.until == After(wait.since, request.queue_timeout)) {
    return absl::DeadlineExceededError(absl::StrCat(
        Name(request.timeout_field), ": the event of event_handle was not reached for ",
        InUnitOf(request.timeout_field, request.queue_timeout),
        ", the longest that the request may wait"));
  }
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(limits_.max_wait).count();
  return absl::DeadlineExceededError(
      absl::StrCat("event_handle: the event was not reached for ", ms,
                   " ms, wanted one whose work is under way (--event_timeout)"));
}

std::vector<EventWaits::Ended> EventWaits::TakeExpired() {
  std::vector<Ended> ended;
  MutexLock lock(mutex_);
  poll_again_ = false;
  const TimePoint now = clock_.Now();
  for (auto at = waits_.begin(); at != waits_.end();) {
    const auto here = at++;
    if (here->second.until > now) continue;
    absl::Status status = TooLate(here->second);
    ended.push_back({Extract(here), std::move(status), EventWaitEnd::kExpired});
  }
  return ended;
}

std::vector<EventWaits::Asked> EventWaits::TakeDue() {
  std::vector<Asked> due;
  MutexLock lock(mutex_);
  const TimePoint now = clock_.Now();
  for (const auto& [id, wait] : waits_) {
    if (wait.event != nullptr && wait.next <= now) due.push_back({id, wait.event.get()});
  }
  return due;
}

void EventWaits::Settle(std::vector<Asked> asked) {
  std::vector<Ended> ended;
  {
    MutexLock lock(mutex_);
    const TimePoint now = clock_.Now();
    for (Asked& each : asked) {
      const auto found = waits_.find(each.id);
      if (found == waits_.end()) continue;
      if (!each.reached.ok()) {
        ended.push_back({Extract(found), each.reached.status(), EventWaitEnd::kFailed});
      } else if (*each.reached) {
        ended.push_back({Extract(found), absl::OkStatus(), EventWaitEnd::kReached});
      } else {
        found->second.next = now + PauseAfter(now - found->second.since);
      }
    }
  }
  End(std::move(ended));
}

// One in each round, so that the requests whose events are open do not wait for many.
void EventWaits::OpenNext() {
  std::uint64_t id = 0;
  AwaitedEvent awaited;
  {
    MutexLock lock(mutex_);
    const auto first = std::find_if(waits_.begin(), waits_.end(),
                                    [](const auto& each) { return each.second.event == nullptr; });
    if (first == waits_.end()) return;
    id = first->first;
    awaited = first->second.awaited;
  }
  const auto* const handle = reinterpret_cast<const std::byte*>(awaited.handle.data());
  auto opened = events_.Open(awaited.device, ConstBytes(handle, awaited.handle.size()));
  std::vector<Asked> asked(1);
  asked[0].id = id;
  if (opened.ok()) {
    asked[0].reached = (*opened)->Reached();
    MutexLock lock(mutex_);
    const auto found = waits_.find(id);
    if (found != waits_.end()) found->second.event = *std::move(opened);
  } else {
    asked[0].reached = opened.status();
  }
  // One that was cancelled meanwhile leaves its event to this function.
  Settle(std::move(asked));
}

void EventWaits::CloseEnded() {
  std::map<std::uint64_t, Wait> ended;
  MutexLock lock(mutex_);
  ended.swap(ended_);
}

TimePoint EventWaits::Poll() {
  End(TakeExpired());
  std::vector<Asked> due = TakeDue();
  for (Asked& each : due) each.reached = each.event->Reached();
  Settle(std::move(due));
  OpenNext();
  CloseEnded();
  TimePoint next = kNever;
  MutexLock lock(mutex_);
  if (!ended_.empty()) return clock_.Now();
  for (const auto& [id, wait] : waits_) {
    if (wait.event == nullptr) return clock_.Now();
    next = std::min({next, wait.next, wait.until});
  }
  return next;
}

std::int64_t EventWaits::waiting_requests() const {
  MutexLock lock(mutex_);
  return static_cast<std::int64_t>(waits_.size());
}

}  // namespace normd
