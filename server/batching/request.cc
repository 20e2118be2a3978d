#include "server/batching/request.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"

namespace normd {
namespace {

// Made at the process's start, and never destroyed: where they are needed there may be no memory.
const absl::Status& kNoMemory = *new absl::Status(
    absl::ResourceExhaustedError("memory: the server has none left for this request"));
const absl::Status& kCancelledByClient =
    *new absl::Status(absl::CancelledError("the client cancelled the request"));

void Finish(std::unique_ptr<Request> request, Completion& completion) {
  completion.stages = request->stages;
  auto done = std::move(request->done);
  request.reset();
  std::move(done)(std::move(completion));
}

}  // namespace

Request::~Request() {
  if (!accepted || done == nullptr) return;
  Completion completion;
  completion.status = NoMemory();
  completion.stages = stages;
  ReleaseInputs();
  model.reset();
  std::move(done)(std::move(completion));
}

const absl::Status& NoMemory() { return kNoMemory; }
const absl::Status& CancelledByClient() { return kCancelledByClient; }

void Complete(std::unique_ptr<Request> request, OutputBuffers&& outputs, const BatchInfo& batch) {
  Completion completion;
  completion.outputs = std::move(outputs);
  completion.batch = batch;
  Finish(std::move(request), completion);
}

void Complete(std::unique_ptr<Request> request, Buffer only_output, const BatchInfo& batch) {
  OutputBuffers outputs;
  outputs.push_back(std::move(only_output));
  // Outputs on request, for which the caller was not asked.
  outputs.resize(std::max<std::size_t>(request->geometry.outputs.size(), 1));
  Complete(std::move(request), std::move(outputs), batch);
}

void Fail(std::unique_ptr<Request> request, absl::Status status) {
  Completion completion;
  completion.status = std::move(status);
  Finish(std::move(request), completion);
}

absl::string_view Name(TimeoutField field) {
  return field == TimeoutField::kTimeout ? "parameters[\"timeout\"]" : "queue_timeout_ns";
}

std::string InUnitOf(TimeoutField field, Duration time) {
  if (field == TimeoutField::kQueueTimeoutNs) return absl::StrCat(time.count(), " ns");
  return absl::StrCat(std::chrono::duration_cast<std::chrono::microseconds>(time).count(), " us");
}

absl::Status CheckWanted(const Request& request, TimePoint now) {
  if (request.IsCancelled()) return CancelledByClient();
  if (request.deadline <= now) {
    return absl::DeadlineExceededError("the deadline passed before the request was computed");
  }
  return absl::OkStatus();
}

TimePoint WaitsUntil(const Request& request) {
  if (request.queue_timeout >= kNever - request.admitted) return request.deadline;
  return std::min(request.deadline, request.admitted + request.queue_timeout);
}

absl::Status WaitedTooLong(const Request& request) {
  if (WaitsUntil(request) == request.deadline) {
    return absl::DeadlineExceededError("the deadline passed while the request waited");
  }
  const TimeoutField field = request.timeout_field;
  return absl::DeadlineExceededError(absl::StrCat(Name(field), ": no lane was free for ",
                                                  InUnitOf(field, request.queue_timeout),
                                                  ", the longest that the request may wait"));
}

}  // namespace normd
