#include "server/batching/request.h"

#include <utility>

namespace normd {
namespace {

void Finish(std::unique_ptr<Request> request, Completion completion) {
  completion.stages = request->stages;
  auto done = std::move(request->done);
  request.reset();
  std::move(done)(std::move(completion));
}

}  // namespace

void Complete(std::unique_ptr<Request> request, Buffer output, BatchInfo batch) {
  Completion completion;
  completion.output = std::move(output);
  completion.batch = std::move(batch);
  Finish(std::move(request), std::move(completion));
}

void Fail(std::unique_ptr<Request> request, absl::Status status) {
  Completion completion;
  completion.status = std::move(status);
  Finish(std::move(request), std::move(completion));
}

absl::Status CheckWanted(const Request& request, TimePoint now) {
  if (request.IsCancelled()) return absl::CancelledError("the client cancelled the request");
  if (request.deadline <= now) {
    return absl::DeadlineExceededError("the deadline passed before the request was computed");
  }
  return absl::OkStatus();
}

}  // namespace normd
