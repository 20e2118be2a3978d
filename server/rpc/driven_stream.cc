#include "server/rpc/driven_stream.h"

#include "server/accept/client_status.h"

namespace normd {

DrivenStream::DrivenStream(AcceptEnvironment& accept, grpc::CallbackServerContext& context,
                           CallArrival arrival)
    : accept_(accept), context_(context), call_(accept, std::move(arrival)) {}

void DrivenStream::Enter(const std::shared_ptr<DrivenStream>& self) {
  accept_.active.Add(self);
  self_ = self;
  SetReads(false);  // Last, when nothing can throw any more.
}

// While the stream does not read, the server does not blame its client for unread bytes; while it
// reads, a message that drips in is judged as a call's is.
void DrivenStream::SetReads(bool reads) {
  if (call_.caller() == nullptr) return;
  call_.caller()->delivered.open_streams.fetch_add(reads ? -1 : 1, std::memory_order_relaxed);
}

void DrivenStream::Start() {
  const absl::Status allowed = CatchAll([this] { return call_.Authorize(); });
  refused_ = !allowed.ok();
  Record([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!allowed.ok()) Fail(allowed);
  });
}

void DrivenStream::OnCancel() {
  call_.Leave();
  Abort(CancelledByClient());
}

void DrivenStream::Abort(const absl::Status& status) {
  Record([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { Fail(status); });
}

void DrivenStream::OnDone() {
  const std::shared_ptr<DrivenStream> self = std::move(self_);
  accept_.active.Remove(this);
  SetReads(true);  // No longer counted.
  OnEnd();
}

void DrivenStream::Fail(const absl::Status& status) {
  if (!status_.ok() || finished_) return;
  status_ = status;
  call_.Cancel();
}

void DrivenStream::Drive() {
  for (bool last = false; !last;) {
    Action action;
    {
      MutexLock lock(mutex_);
      const absl::Status status = CatchAll([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        action = status_.ok() ? Next() : NextOfFailed();
        return absl::OkStatus();
      });
      if (!status.ok()) {
        Fail(status);
        continue;
      }
      if (action == nullptr) {
        driving_ = false;
        return;
      }
      // After the last action the call may be gone: `driving_` stays set, so that nobody drives
      // again.
      last = finished_;
    }
    const absl::Status acted = CatchAll([&action] {
      std::move(action)();
      return absl::OkStatus();
    });
    if (acted.ok()) continue;
    MutexLock lock(mutex_);
    Fail(acted);
  }
}

}  // namespace normd
