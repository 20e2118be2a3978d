// A CPU lane's computation for one model: an implementation of one of the kernels' contracts. Each
// contract has a pair of files that derive from the two classes here.

#ifndef NORMD_SERVER_EXEC_CPU_PROGRAM_H_
#define NORMD_SERVER_EXEC_CPU_PROGRAM_H_

#include <cstddef>
#include <memory>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "base/buffer.h"
#include "base/buffer_pool.h"
#include "base/clock.h"
#include "server/batching/request.h"
#include "server/model/model.h"

namespace normd::norm::cpu {
class Executor;
}  // namespace normd::norm::cpu

namespace normd {

// The resources that a lane lends to its runs; all outlive them.
struct CpuResources {
  const norm::cpu::Executor& kernels;
  BufferPool& pool;
  const Clock& clock;
};

// A request in a lane.
struct CpuItem {
  std::unique_ptr<Request> request;
  OutputBuffers buffers;  // Own the outputs that the request does not name.
  // The place of each output; null for those without bytes.
  absl::InlinedVector<std::byte*, kInlinedOutputs> outputs;
  absl::InlinedVector<Buffer, 1> gathered;  // Inputs that had to be copied.
};

// Passes one batch after another through the kernels. Used by one thread; keeps its memory between
// batches.
class CpuRun {
 public:
  explicit CpuRun(const CpuResources& resources) : resources_(resources) {}
  virtual ~CpuRun() = default;
  CpuRun(const CpuRun&) = delete;
  CpuRun& operator=(const CpuRun&) = delete;

  // Begins a batch of a model with `state`, which is of the class that made this run.
  void Begin(const BackendState& state, norm::DType dtype);
  // Prepares the request's computation, and releases its inputs if they are not read in place. A
  // placed request is computed by the next Compute, or by the run itself before that. On failure
  // the item is unchanged.
  virtual absl::Status Place(CpuItem& item) = 0;
  // Computes the placed requests. After an error the rest of the batch is not computed.
  void Compute();
  // Fails the batch with `status`, after a Place that threw.
  void Abandon(const absl::Status& status);

  // The batch's first error, its time in the kernels, and the time of their last return.
  const absl::Status& status() const { return status_; }
  Duration compute_time() const { return compute_time_; }
  TimePoint computed() const { return computed_; }

 protected:
  const CpuResources& resources() const { return resources_; }
  // inputs[index] of the item in one piece that is aligned to its element: in place if it lies like
  // that, which sets `in_place`; otherwise copied to `spare` or, if that is null, to memory of the
  // pool. Null for an empty input.
  absl::StatusOr<const std::byte*> InOnePiece(CpuItem& item, std::size_t index, std::byte* spare,
                                              bool& in_place) const;

 private:
  virtual void Start(const BackendState& state, norm::DType dtype) = 0;
  virtual absl::Status Launch() = 0;  // Computes the segments of the placed requests.
  virtual void Forget() = 0;          // Removes them.

  const CpuResources resources_;
  absl::Status status_;
  Duration compute_time_{};
  TimePoint computed_{};
};

// Immutable.
class CpuProgram : public BackendState {
 public:
  // A run for batches of every model whose program is of this class.
  virtual std::unique_ptr<CpuRun> MakeRun(const CpuResources& resources) const = 0;
};

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_CPU_PROGRAM_H_
