// A request between the front end that decoded it and the lane that computes it. It knows no
// message and no operation, and of the protocol only its name for the queue time-out. Each of its
// inputs is a list of views of memory that the front end owns; each of its outputs goes to memory
// that the front end names or comes back as a Buffer.

#ifndef NORMD_SERVER_BATCHING_REQUEST_H_
#define NORMD_SERVER_BATCHING_REQUEST_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "base/buffer.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/memory.h"
#include "kernels/types.h"
#include "server/batching/priority.h"
#include "server/metrics/stage.h"
#include "server/model/model.h"

namespace normd {

// The batch that a request was part of.
struct BatchInfo {
  std::int64_t id = 0;
  std::int64_t requests = 0;
  std::int64_t bytes = 0;
  std::string lane;
};

using OutputBuffers = absl::InlinedVector<Buffer, kInlinedOutputs>;

// The argument of `done`. With an error, only `status` and `stages` are valid.
struct Completion {
  absl::Status status;
  // One for each of the model's outputs, of geometry.outputs; empty where Request::outputs
  // named the memory.
  OutputBuffers outputs;
  StageTimes stages;
  BatchInfo batch;
};

// One tensor's bytes in order, of any split and alignment.
using ByteViews = absl::InlinedVector<ConstBytes, 4>;

// The place of an input's bytes. Lanes read them in place if they can, or copy them once; see
// Lane::access.
struct InputMemory {
  ByteViews views;
  MemoryPlace place;  // The place of all of them.
};

// The place of an output; if empty, the lane supplies a Buffer.
struct OutputMemory {
  MutableBytes bytes;
  MemoryPlace place;
};

// The form of the queue time-out in the request's protocol, which errors repeat.
enum class TimeoutField {
  kQueueTimeoutNs,  // "queue_timeout_ns", in nanoseconds.
  kTimeout,         // The parameter "timeout", in microseconds.
};
absl::string_view Name(TimeoutField field);
// "70 us".
std::string InUnitOf(TimeoutField field, Duration time);

// Move-only. Owned by one place at a time: front end, queue, batch. Not thread-safe, but for
// `cancelled`.
struct Request {
  // If nobody could end it for lack of memory, `done` gets NoMemory().
  ~Request();

  std::uint64_t id = 0;  // Unique within the server.
  std::shared_ptr<const Model> model;
  norm::DType dtype = norm::DType::kFloat32;  // The first input's; one for a whole batch.
  RequestOptions options;                     // Requests of one batch may differ in them.
  Geometry geometry;

  // One for each of the model's inputs, in the order of geometry.inputs. Valid while `input_owner`
  // lives; the lane releases it as soon as it has read them all.
  absl::InlinedVector<InputMemory, kInlinedInputs> inputs;
  std::shared_ptr<void> input_owner;  // shared: a mapped region serves many requests.
  // Set by an InputStager: a block of pinned memory in which each input is one view. A single input
  // fills the whole block, which may then become an output. Empty: the inputs are not staged.
  Buffer staged;

  // The places of the results: empty, or one for each of the model's outputs. Named memory is
  // element-aligned, as in geometry.outputs, and valid until `done`. It overlaps no other output
  // and no input of any request, except that it may be exactly the input of this request that
  // OverwritableInput (operations/kernel_program.h) gives for it.
  absl::InlinedVector<OutputMemory, kInlinedOutputs> outputs;

  TimePoint arrival{};          // When the front end began to decode it.
  TimePoint admitted{};         // When it entered the queue; set by BatchQueue.
  TimePoint deadline = kNever;  // Not computed once this has passed.
  // The time limit for waiting for a lane; once taken, it is computed. Beyond any clock: no limit.
  Duration queue_timeout = Duration::max();
  TimeoutField timeout_field = TimeoutField::kQueueTimeoutNs;
  Priority priority = Priority::kNormal;
  // The holder that it counts against, so that the busiest sender feels overload first. 0: none.
  std::uint64_t holder = 0;
  // Whether it may be refused as late, or dropped for another while it waits. False for parts of
  // something larger that is already in progress.
  bool may_be_dropped = true;
  // Whether Push may compute it and run `done` before it returns. For front ends that hold no lock
  // and have nothing else to do on that thread.
  bool may_run_inline = false;
  StageTimes stages;

  // Set by the front end when the client is gone. shared: the client may leave after the request
  // has ended. Relaxed order suffices: it only saves work.
  std::shared_ptr<std::atomic<bool>> cancelled;

  // Runs exactly once, on any thread, without locks held: the server's promise for every request
  // that BatchQueue::Push accepted. Must neither block nor throw.
  absl::AnyInvocable<void(Completion&&) &&> done;
  bool accepted = false;  // By BatchQueue::Push.

  void ReleaseInputs() {
    inputs.clear();
    input_owner.reset();
    staged = Buffer();
  }
  bool IsStaged() const { return staged.size() > 0; }
  bool IsCancelled() const {
    return cancelled != nullptr && cancelled->load(std::memory_order_relaxed);
  }
};

// The two ways in which a request ends. Everything that it held (model, input_owner) is released
// before `done` runs.
void Complete(std::unique_ptr<Request> request, OutputBuffers&& outputs, const BatchInfo& batch);
void Complete(std::unique_ptr<Request> request, Buffer only_output, const BatchInfo& batch);
void Fail(std::unique_ptr<Request> request, absl::Status status);

// The errors of calls that end without memory, or because of their clients: they need no memory.
const absl::Status& NoMemory();
const absl::Status& CancelledByClient();

// Cancelled or DeadlineExceeded when nobody waits for the result any more; OK otherwise.
absl::Status CheckWanted(const Request& request, TimePoint now);

// The end of an admitted request's wait in the queue: that of its time-out, or its deadline.
TimePoint WaitsUntil(const Request& request);
// The error after that time: DeadlineExceeded, which names the one of the two.
absl::Status WaitedTooLong(const Request& request);

// An average of the lanes' time per batch, over about the last eight. Thread-safe. Relaxed: it is
// an estimate, and a lost update does no harm.
class LaneTime {
 public:
  void Record(Duration time) {
    const Duration::rep average = average_.load(std::memory_order_relaxed);
    average_.store(average + (time.count() - average) / 8, std::memory_order_relaxed);
  }
  Duration average() const { return Duration(average_.load(std::memory_order_relaxed)); }

 private:
  std::atomic<Duration::rep> average_{0};
};

// Requests of one model version and one type, computed together. At least one. It ends with the
// work on it.
struct Batch {
  Batch() = default;
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;
  ~Batch() {
    if (lane_time != nullptr) lane_time->Record(clock->Now() - taken);
  }

  std::int64_t id = 0;
  std::shared_ptr<const Model> model;
  norm::DType dtype = norm::DType::kFloat32;
  absl::InlinedVector<std::unique_ptr<Request>, 1> requests;
  std::int64_t bytes = 0;
  TimePoint taken{};
  // Receives the time from `taken` to its end; null: none does. shared: a batch may outlive the
  // queue's knowledge of its model.
  std::shared_ptr<LaneTime> lane_time;
  const Clock* clock = nullptr;  // With `lane_time`.
};

// Moves inputs to where devices can read them, on the thread that has just received them: the bytes
// are in that core's cache. Thread-safe.
class InputStager {
 public:
  virtual ~InputStager() = default;

  // Leaves the request alone, or moves its inputs to Request::staged and releases input_owner.
  // Waits only for the copy.
  virtual void Stage(Request& request) = 0;
};

// Computes batches, one at a time.
class BatchRunner {
 public:
  virtual ~BatchRunner() = default;

  // Completes each request of the batch exactly once, during the call or later. Cancelled or
  // expired requests end without being computed. After an error it can do no further work; it has
  // still completed this batch.
  virtual absl::Status Execute(std::unique_ptr<Batch> batch) = 0;
};

}  // namespace normd

#endif  // NORMD_SERVER_BATCHING_REQUEST_H_
