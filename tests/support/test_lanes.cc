#include "tests/support/test_lanes.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "base/retry_after.h"

namespace normd {

PuppetLane::~PuppetLane() {
  if (held_.empty()) return;
  std::fprintf(stderr, "PuppetLane destroyed with %zu batches\n", held_.size());
  std::abort();
}

absl::Status PuppetLane::Execute(std::unique_ptr<Batch> batch) {
  held_.push_back(std::move(batch));
  return absl::OkStatus();
}

void PuppetLane::Flush() {
  while (!held_.empty()) CompleteFront();
}

void PuppetLane::CompleteFront(const absl::Status& status) {
  std::unique_ptr<Batch> batch = std::move(held_.front());
  held_.pop_front();
  CompleteAll(std::move(batch), status, name_);
}

absl::Status FaultyLane::Execute(std::unique_ptr<Batch> batch) {
  if (batches_++ < fail_at_) return inner_->Execute(std::move(batch));
  absl::Status end = absl::InternalError(error_.message());
  if (const auto after = RetryAfterOf(error_)) SetRetryAfter(*after, end);
  CompleteAll(std::move(batch), end, name());
  return error_;
}

void Gate::Open() {
  MutexLock lock(mutex_);
  open_ = true;
  changed_.SignalAll();
}

void Gate::Close() {
  MutexLock lock(mutex_);
  open_ = false;
}

void Gate::WaitForStalled(int lanes) {
  MutexLock lock(mutex_);
  while (stalled_ < lanes) changed_.Wait(mutex_);
}

void Gate::Pass() {
  MutexLock lock(mutex_);
  ++stalled_;
  changed_.SignalAll();
  while (!open_) changed_.Wait(mutex_);
  --stalled_;
}

absl::Status PausingLane::Execute(std::unique_ptr<Batch> batch) {
  gate_.Pass();
  return inner_->Execute(std::move(batch));
}

void CompleteAll(std::unique_ptr<Batch> batch, const absl::Status& status,
                 const std::string& lane) {
  const BatchInfo info{batch->id, static_cast<std::int64_t>(batch->requests.size()), batch->bytes,
                       lane};
  for (std::unique_ptr<Request>& request : batch->requests) {
    absl::Status end = request->IsCancelled() ? absl::CancelledError("cancelled") : status;
    if (end.ok()) {
      Complete(std::move(request), OutputBuffers(1), info);
    } else {
      Fail(std::move(request), std::move(end));
    }
  }
}

}  // namespace normd
