#include "server/rpc/queueing.h"

#include "absl/strings/str_cat.h"

namespace normd {

absl::StatusOr<Queueing> CheckQueueing(const NormalizeRequestView& view) {
  Queueing queueing;
  switch (view.priority) {
    case v1::PRIORITY_UNSPECIFIED:
    case v1::PRIORITY_NORMAL: queueing.priority = Priority::kNormal; break;
    case v1::PRIORITY_LOW: queueing.priority = Priority::kLow; break;
    case v1::PRIORITY_HIGH: queueing.priority = Priority::kHigh; break;
    default:
      return absl::InvalidArgumentError(absl::StrCat("priority: ", static_cast<int>(view.priority),
                                                     ", wanted from 0 to ", v1::Priority_MAX));
  }
  if (view.queue_timeout_ns < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("queue_timeout_ns: ", view.queue_timeout_ns, ", wanted 0 or more"));
  }
  if (view.queue_timeout_ns > 0) queueing.timeout = Duration(view.queue_timeout_ns);
  return queueing;
}

}  // namespace normd
