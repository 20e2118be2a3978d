#include "server/batching/queue_refusals.h"

#include <chrono>

#include "absl/strings/str_cat.h"

namespace normd {
namespace {

double InMs(Duration time) { return std::chrono::duration<double, std::milli>(time).count(); }

}  // namespace

absl::Status NoRoom(const Request& request, std::int64_t waiting) {
  return absl::ResourceExhaustedError(absl::StrCat("queue of model \"", request.model->name(),
                                                   "\": ", waiting,
                                                   " requests wait, as many as may"));
}

absl::Status TooLate(const Request& request, const Arrival& arrival) {
  const bool by_deadline = arrival.patience < request.queue_timeout;
  const absl::string_view bound = by_deadline ? "the deadline" : Name(request.timeout_field);
  return absl::ResourceExhaustedError(
      absl::StrCat("queue of model \"", request.model->name(), "\": a request would wait ",
                   InMs(arrival.wait), " ms, ", bound, " leaves ", InMs(arrival.patience), " ms"));
}

absl::Status GivesWay(const Request& request, const Arrival& arrival) {
  return absl::ResourceExhaustedError(absl::StrCat(
      "queue of model \"", request.model->name(),
      "\": ", arrival.line_is_full ? "it is full" : "others would wait too long",
      ", and this caller has ", arrival.most_waiting, " requests in it, more than any other"));
}

}  // namespace normd
