// A lane computes batches, on the CPU or on one device.

#ifndef NORMD_SERVER_EXEC_LANE_H_
#define NORMD_SERVER_EXEC_LANE_H_

#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "server/batching/request.h"
#include "server/exec/memory_access.h"

namespace normd {

// Used by one thread at a time. Several lanes run at once. A lane records its own busy time,
// because only it knows when its device works.
class Lane : public BatchRunner {
 public:
  // "cpu:0", "cuda:1/2"; constant.
  virtual const std::string& name() const = 0;
  // "cpu", "cuda:1"; constant.
  virtual const std::string& device() const = 0;

  // The memory that it reads and writes in place. Other host memory is copied once. A request with
  // a tensor in other device memory ends with INVALID_ARGUMENT, unless the lane passes it on.
  virtual MemoryAccess access() const { return {}; }

  // In addition to BatchRunner's promises: requests complete during the call or on one of the
  // lane's threads, those of a failed batch with INTERNAL. It blocks until the lane can take
  // another batch, so that other work stays in the queue, where it finds company and can be
  // cancelled.

  // Returns when everything that Execute took is completed. Also called after an error.
  virtual void Flush() {}

  // Makes Execute call `large_batch` on its thread before a batch that will occupy it for long, so
  // that another lane may take the next one. Not while Execute runs.
  void OnLargeBatch(absl::AnyInvocable<void()> large_batch) {
    large_batch_ = std::move(large_batch);
  }

 protected:
  void LargeBatch() {
    if (large_batch_) large_batch_();
  }

 private:
  absl::AnyInvocable<void()> large_batch_;
};

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_LANE_H_
