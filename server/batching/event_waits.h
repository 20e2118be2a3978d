// Requests that wait for an event of their client's before they enter the queue: its device is
// still writing their inputs.
//
// No lane and no stream of a device waits for another process's event, which may never come. One
// thread asks the driver whether the events are reached, and hands on the requests for which they
// are. A request waits for a bounded time, and of each client a bounded number do. A driver that
// hangs holds up the ends of such waits, but for cancellation.
//
// The event is opened for each request anew, also where several requests name one handle: a driver
// may give the handle of an event that its client has destroyed to another one.

#ifndef NORMD_SERVER_BATCHING_EVENT_WAITS_H_
#define NORMD_SERVER_BATCHING_EVENT_WAITS_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/shared_device_events.h"
#include "server/batching/request.h"
#include "server/metrics/handles.h"

namespace normd {

struct EventWaitLimits {
  std::int64_t max_requests = 256;
  std::int64_t max_holder_requests = 64;  // Those of one Request::holder.
  Duration max_wait = std::chrono::seconds(10);
};

// Thread-safe. No lock is held while the driver works, nor while a request ends or is handed on.
// The driver is asked, and events are opened and closed, on the thread in Poll alone.
class EventWaits {
 public:
  // Takes a request as BatchQueue::Push does.
  using Push = std::function<absl::Status(std::unique_ptr<Request>&)>;

  // `events`, `metrics` and `clock` outlive it.
  EventWaits(SharedDeviceEvents& events, const EventWaitLimits& limits, RegionMetrics& metrics,
             const Clock& clock);
  // Nothing waits by now. Ends the thread.
  ~EventWaits();
  EventWaits(const EventWaits&) = delete;
  EventWaits& operator=(const EventWaits&) = delete;

  // Where requests go whose events are reached. Before the first Hold.
  void PushTo(Push push) { push_ = std::move(push); }
  // Has a thread of its own poll. Once.
  void Start();

  // Takes a request with an event on success, and leaves it with the caller on failure:
  // ResourceExhausted when as many wait as may, Unavailable after Close or Abort. It ends with
  // DeadlineExceeded when it has waited for its deadline, its queue time-out or the limit's time,
  // with the error of SharedDeviceEvents::Open, or with that of the push. What it has waited is its
  // Request::event_wait.
  absl::Status Hold(std::unique_ptr<Request>& request);
  // Completes a request that waits here with CANCELLED; without effect on others. The caller sets
  // Request::cancelled first, so that one that is on its way to the queue ends there.
  void Cancel(std::uint64_t request_id);
  // Takes no more; what waits goes on to the push.
  void Close();
  // Completes all that wait with `status`, and takes no more.
  void Abort(const absl::Status& status);

  // One round: ends what has waited for too long, asks for the events that are due, hands on what
  // is reached, opens one event, closes those that nobody waits for. Returns when to come again. By
  // one thread at a time.
  TimePoint Poll();

  std::int64_t waiting_requests() const;

 private:
  struct Wait {
    std::unique_ptr<Request> request;
    AwaitedEvent awaited;
    TimePoint since{};
    TimePoint until{};
    TimePoint next{};                          // When the event is asked for.
    std::unique_ptr<SharedDeviceEvent> event;  // Null: not opened yet.
  };
  struct Asked {
    std::uint64_t id = 0;
    SharedDeviceEvent* event = nullptr;  // Only Poll closes it.
    absl::StatusOr<bool> reached = false;
  };
  struct Ended {
    std::unique_ptr<Request> request;
    absl::Status status;
    EventWaitEnd how = EventWaitEnd::kFailed;
  };

  void Loop();
  TimePoint OnSteadyClock(TimePoint time) const;
  absl::Status CheckRoom(std::uint64_t holder) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CallPoll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::unique_ptr<Request> Extract(std::map<std::uint64_t, Wait>::iterator at)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void End(std::vector<Ended> ended);
  std::vector<Ended> TakeExpired();
  std::vector<Asked> TakeDue();
  void Settle(std::vector<Asked> asked);
  void OpenNext();
  void CloseEnded();
  absl::Status TooLate(const Wait& wait) const;

  SharedDeviceEvents& events_;
  const EventWaitLimits limits_;
  RegionMetrics& metrics_;
  const Clock& clock_;
  Push push_;  // Constant after PushTo.
  mutable Mutex mutex_;
  CondVar changed_;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  // Since the last round began, a request has come, or one has left whose event is to be closed.
  bool poll_again_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<std::uint64_t, Wait> waits_ ABSL_GUARDED_BY(mutex_);  // By the request's id.
  std::map<std::uint64_t, std::int64_t> by_holder_ ABSL_GUARDED_BY(mutex_);
  std::map<std::uint64_t, Wait> ended_ ABSL_GUARDED_BY(mutex_);  // Their events are to be closed.
  std::thread thread_;
};

}  // namespace normd

#endif  // NORMD_SERVER_BATCHING_EVENT_WAITS_H_
