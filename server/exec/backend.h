// The compute backend that `--device` names: its lanes and what it keeps of each model.

#ifndef NORMD_SERVER_EXEC_BACKEND_H_
#define NORMD_SERVER_EXEC_BACKEND_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/base/clock.h"
#include "server/exec/lane.h"
#include "server/metrics/metrics.h"
#include "server/model/model.h"

namespace normd {

struct BackendOptions {
  std::string device = "auto";  // "auto", "cpu", "cuda", "cuda:0,1"
  // Batches computed at once; they share the threads. 0: one for every four threads, at least two,
  // so that one gathers and sends while the other computes.
  int cpu_lanes = 0;
  int cpu_threads = 0;                                // 0: every core that the process may use.
  std::int64_t pool_bytes = std::int64_t{256} << 20;  // Kept for reuse; the rest is returned.

  // Of each CUDA device.
  int device_lanes = 4;
  std::int64_t pinned_pool_bytes = std::int64_t{512} << 20;  // Host memory for responses.
  std::int64_t device_batch_bytes = std::int64_t{80} << 20;  // Of tensors in one lane at once.
};

// Outlives the models that it prepared and the lanes that it made.
class Backend : public ModelBackend {
 public:
  // At least one. Called once.
  virtual std::vector<std::unique_ptr<Lane>> MakeLanes() = 0;
  // For requests that are computed on the thread that brings them (BatchQueue::RunInlineOn): they
  // complete everything within Execute and need no Flush. None where that does not pay. Called
  // once.
  virtual std::vector<std::unique_ptr<Lane>> MakeInlineLanes() { return {}; }
  virtual std::string Description() const = 0;  // For the log: "cpu, 16 threads, AVX3"
};

// InvalidArgument for a device that cannot be parsed, FailedPrecondition for one that is named but
// is not here or not in this build. "auto" takes every CUDA device, and without one the CPU, with
// one line in the log that says so. `metrics` and `clock` outlive the backend.
absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(const BackendOptions& options,
                                                       Metrics& metrics, const Clock& clock);

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_BACKEND_H_
