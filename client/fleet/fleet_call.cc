#include "client/fleet/fleet_call.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace normd::client {
namespace {

// The same error with the number of attempts.
absl::Status AfterAttempts(const absl::Status& status, int attempts) {
  if (attempts < 2) return status;
  absl::Status told(status.code(),
                    absl::StrCat(status.message(), " (attempt ", attempts, " of this call)"));
  status.ForEachPayload(
      [&](absl::string_view url, const absl::Cord& payload) { told.SetPayload(url, payload); });
  return told;
}

}  // namespace

// It ends with its response or when it is abandoned, whichever is first: gRPC may hold a cancelled
// call for as long as its connection takes no bytes, which in a partition is the whole partition.
class FleetCall::OneAttempt final : public Attempt,
                                    public std::enable_shared_from_this<OneAttempt> {
 public:
  OneAttempt(std::shared_ptr<FleetCall> call, std::shared_ptr<Server> s)
      : server(std::move(s)), call_(std::move(call)) {}

  void Abandon() override {
    if (!End()) return;
    Stop();
    call_->OnEnd(shared_from_this(),
                 absl::UnavailableError(
                     absl::StrCat(server->address.target, " has gone silent with the call")),
                 /*is_abandoned=*/true);
  }
  // Another response was faster, or the call is cancelled.
  void Drop() {
    {
      MutexLock lock(mutex_);
      unwanted_ = true;
    }
    Stop();
  }
  void SetPending(std::shared_ptr<PendingCall> pending) {
    {
      MutexLock lock(mutex_);
      if (!ended_) pending_ = pending;
      if (!ended_ && !unwanted_) return;
    }
    pending->Cancel();
  }
  // True the first time.
  bool End() {
    MutexLock lock(mutex_);
    return !std::exchange(ended_, true);
  }
  // The pending call holds its `done`, which holds this.
  void Release() {
    MutexLock lock(mutex_);
    pending_.reset();
  }
  bool unwanted() {
    MutexLock lock(mutex_);
    return unwanted_;
  }

  const std::shared_ptr<Server> server;

 private:
  void Stop() {
    std::shared_ptr<PendingCall> pending;
    {
      MutexLock lock(mutex_);
      pending = pending_;
    }
    if (pending != nullptr) pending->Cancel();
  }

  const std::shared_ptr<FleetCall> call_;
  Mutex mutex_;
  bool unwanted_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<PendingCall> pending_ ABSL_GUARDED_BY(mutex_);
};

FleetCall::FleetCall(std::shared_ptr<FleetState> state, const EncodedRequest& request,
                     Duration timeout, Caller::Done done)
    : state_(std::move(state)),
      request_(request),
      deadline_(timeout < kNever - SteadyClock().Now() ? SteadyClock().Now() + timeout : kNever),
      done_(std::move(done)) {}

Duration FleetCall::Left() const {
  return deadline_ == kNever ? kNoTimeout : std::max(deadline_ - SteadyClock().Now(), Duration{1});
}

void FleetCall::Start() {
  {
    MutexLock lock(state_->mutex);
    ++state_->counted.calls;
  }
  if (Send(nullptr)) return;
  const absl::Status status = state_->servers->Unavailable();
  state_->Hurry();
  if (PlanRetry(status, nullptr)) return;
  // `done` never runs within NormalizeAsync.
  Later(Duration{0}, [call = shared_from_this(), status](bool) { call->FailUnlessBusy(status); });
}

void FleetCall::Later(Duration delay, std::function<void(bool)> function) {
  // shared: with the call, which may end it early. Its function holds the call, so Finish, which
  // every call reaches, releases it.
  auto alarm = std::make_shared<grpc::Alarm>();
  {
    MutexLock lock(mutex_);
    if (finished_) return;
    alarms_.push_back(alarm);
  }
  alarm->Set(std::chrono::system_clock::now() + delay, std::move(function));
}

bool FleetCall::Send(const Server* avoid) {
  const std::shared_ptr<Server> server = state_->servers->Begin(avoid);
  if (server == nullptr) return false;
  auto attempt = std::make_shared<OneAttempt>(shared_from_this(), server);  // shared: with it.
  bool is_first = false;
  {
    MutexLock lock(mutex_);
    is_first = attempts_ == 0;
    ++attempts_;
    active_.push_back(attempt);
    // The attempt can no longer be left out: it ends as soon as it has begun.
    if (finished_ || cancelled_) attempt->Drop();
  }
  state_->servers->Register(*server, attempt);
  {
    MutexLock lock(state_->mutex);
    ++state_->counted.attempts;
  }
  if (is_first) PlanHedge(server);
  attempt->SetPending(server->client->NormalizeAsync(
      request_, Left(),
      [call = shared_from_this(), attempt](absl::StatusOr<NormalizeResponse> response) {
        attempt->Release();
        if (attempt->End()) call->OnEnd(attempt, std::move(response), /*is_abandoned=*/false);
      }));
  return true;
}

bool FleetCall::IsCancelled() {
  MutexLock lock(mutex_);
  return cancelled_;
}

void FleetCall::OnEnd(const std::shared_ptr<OneAttempt>& attempt,
                      absl::StatusOr<NormalizeResponse> response, bool is_abandoned) {
  absl::Status status = response.status();
  // A gRPC server that shuts down sends CANCELLED to calls that nobody has cancelled.
  if (absl::IsCancelled(status) && !IsCancelled()) {
    status = absl::UnavailableError(
        absl::StrCat(attempt->server->address.target, " has cancelled the call"));
  }
  // Neither says anything new about the server: it is known to be silent, or was not awaited.
  absl::Status told = status;
  if (is_abandoned) told = absl::CancelledError();
  if (attempt->unwanted()) told = absl::OkStatus();
  const bool is_down = state_->servers->End(*attempt->server, attempt, told);
  if (is_down) state_->Hurry();
  bool is_cancelled = false;
  {
    MutexLock lock(mutex_);
    active_.erase(std::remove(active_.begin(), active_.end(), attempt), active_.end());
    if (finished_) return;
    is_cancelled = cancelled_;
  }
  {
    MutexLock lock(state_->mutex);
    if (status.ok()) state_->budget.OnSuccess();
    if (is_abandoned) ++state_->counted.abandoned;
  }
  if (status.ok()) return Finish(std::move(response));
  if (!is_cancelled && PlanRetry(status, attempt->server)) return;
  FailUnlessBusy(status);
}

bool FleetCall::PlanRetry(const absl::Status& status, std::shared_ptr<Server> failed) {
  const RetryPolicy& policy = state_->options.retry;
  int attempts = 0;
  {
    MutexLock lock(mutex_);
    // Attempts that found no server count too: otherwise a fleet that is gone would be asked for
    // ever.
    if (failed == nullptr) ++attempts_;
    attempts = attempts_;
  }
  Duration delay{0};
  {
    MutexLock lock(state_->mutex);
    const double jitter = std::uniform_real_distribution<double>()(state_->random);
    if (state_->closed || !MayRetry(policy, status, attempts, jitter, delay)) return false;
    // No server is available: the next check may find one, an immediate attempt does not.
    if (failed == nullptr) delay = std::max(delay, policy.initial_backoff);
    if (deadline_ != kNever && SteadyClock().Now() + delay >= deadline_) return false;
    if (!state_->budget.Take()) {
      ++state_->counted.over_budget;
      return false;
    }
    ++state_->counted.retries;
  }
  SendLater(delay, std::move(failed));
  return true;
}

void FleetCall::SendLater(Duration delay, std::shared_ptr<Server> avoid) {
  {
    MutexLock lock(mutex_);
    ++planned_;
  }
  Later(delay, [call = shared_from_this(), avoid = std::move(avoid)](bool) {
    bool is_cancelled = false;
    {
      MutexLock lock(call->mutex_);
      --call->planned_;
      if (call->finished_) return;
      is_cancelled = call->cancelled_;
    }
    if (is_cancelled) return call->FailUnlessBusy(absl::CancelledError("cancelled by the client"));
    if (call->Send(avoid.get())) return;
    const absl::Status status = call->state_->servers->Unavailable();
    if (!call->PlanRetry(status, nullptr)) call->FailUnlessBusy(status);
  });
}

void FleetCall::PlanHedge(std::shared_ptr<Server> first) {
  if (state_->options.hedge_after <= Duration{0}) return;
  Later(state_->options.hedge_after,
        [call = shared_from_this(), first = std::move(first)](bool due) {
          {
            MutexLock lock(call->mutex_);
            const bool waits = due && !call->finished_ && !call->cancelled_ &&
                               call->active_.size() == 1 &&
                               call->attempts_ < call->state_->options.retry.max_attempts;
            if (!waits) return;
          }
          {
            MutexLock lock(call->state_->mutex);
            if (call->state_->closed || !call->state_->budget.Take()) return;
            ++call->state_->counted.hedges;
          }
          call->Send(first.get());
        });
}

void FleetCall::FailUnlessBusy(const absl::Status& status) {
  int attempts = 0;
  {
    MutexLock lock(mutex_);
    if (finished_ || !active_.empty() || planned_ > 0) return;
    attempts = attempts_;
  }
  Finish(AfterAttempts(status, attempts));
}

void FleetCall::Finish(absl::StatusOr<NormalizeResponse> response) {
  std::vector<std::shared_ptr<OneAttempt>> others;
  std::vector<std::shared_ptr<grpc::Alarm>> alarms;
  Caller::Done done;
  {
    MutexLock lock(mutex_);
    if (std::exchange(finished_, true)) return;
    others.swap(active_);
    alarms.swap(alarms_);
    done = std::move(done_);
  }
  for (const auto& other : others) other->Drop();
  for (const auto& alarm : alarms) alarm->Cancel();
  std::move(done)(std::move(response));
}

void FleetCall::Cancel() {
  std::vector<std::shared_ptr<OneAttempt>> active;
  std::vector<std::shared_ptr<grpc::Alarm>> alarms;
  {
    MutexLock lock(mutex_);
    if (finished_) return;
    cancelled_ = true;
    active = active_;
    alarms = alarms_;
  }
  for (const auto& attempt : active) attempt->Drop();
  // A waiting retry learns at once that it is not needed.
  for (const auto& alarm : alarms) alarm->Cancel();
}

}  // namespace normd::client
