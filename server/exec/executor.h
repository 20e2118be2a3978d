// The lanes and their threads: each pulls batches from the queue until it closes.

#ifndef NORMD_SERVER_EXEC_EXECUTOR_H_
#define NORMD_SERVER_EXEC_EXECUTOR_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/batching/batch_queue.h"
#include "server/exec/lane.h"

namespace normd {

// Start and Join are called by one thread; the rest is thread-safe.
class Executor {
 public:
  // At least one lane. `queue` outlives it. `inline_lanes` have no thread of their own: the queue
  // uses them from Start to Join. At most `small_lanes` lanes of a device take and compute at once,
  // beside those with a large batch (Lane::OnLargeBatch). 0: all of them may.
  Executor(std::vector<std::unique_ptr<Lane>> lanes, BatchQueue& queue,
           std::vector<std::unique_ptr<Lane>> inline_lanes = {}, int small_lanes = 0);
  // Requires that Join has returned, or that Start was never called.
  ~Executor();

  // Starts one thread per lane, and the queue's reaper. A lane that returns an error is flushed and
  // retired. `on_last_lane_retired` runs at most once, on that lane's thread, with its error:
  // nothing takes from the queue any more, so it must close and abort the queue.
  void Start(std::function<void(const absl::Status&)> on_last_lane_retired);
  // Waits until the queue is closed and empty and every batch is completed. A second call returns
  // at once. No Push is in progress.
  void Join();

  std::vector<std::string> lane_names() const;
  int working_lanes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_EXECUTOR_H_
