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
class Lane : public BatchRunner {
 public:
  // "cpu:0", "cuda:1/2"; constant.
  virtual const std::string& name() const = 0;
  // "cpu", "cuda:1"; constant.
  virtual const std::string& device() const = 0;

  // Execute, beyond what it promises: requests complete during the call or from a thread of the
  // lane's own, those of a batch that failed with INTERNAL. It blocks until the lane can take
  // another batch, so that what it cannot work on yet stays in the queue, where it finds company
  // and can be cancelled.

  // Returns when everything that Execute took is completed. Also called after an error.
  virtual void Flush() {}
};

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_LANE_H_
