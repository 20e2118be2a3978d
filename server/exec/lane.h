// A lane computes batches: on the CPU, or on one stream of one device.

#ifndef NORMD_SERVER_EXEC_LANE_H_
#define NORMD_SERVER_EXEC_LANE_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "server/batching/request.h"

namespace normd {

// Used by one thread. Several lanes run at once. A lane records its own busy time, because only it
// knows when its device works.
class Lane {
 public:
  virtual ~Lane() = default;

  // "cpu:0", "cuda:1/2"; constant.
  virtual const std::string& name() const = 0;
  // "cpu", "cuda:1"; constant.
  virtual const std::string& device() const = 0;

  // Computes the batch and completes each of its requests exactly once, during the call or later
  // from a thread of the lane's own. Requests that are cancelled or expired by now end without
  // being computed. Blocks until the lane can take another batch, so that what it cannot work on
  // yet stays in the queue, where it finds company and can be cancelled. An error means that the
  // lane can do no further work; it has then still completed this batch (with INTERNAL).
  virtual absl::Status Execute(std::unique_ptr<Batch> batch) = 0;

  // Returns when everything that Execute took is completed. Also called after an error.
  virtual void Flush() {}
};

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_LANE_H_
