#include "server/exec/cpu_lane.h"

#include <utility>

#include "server/exec/gather.h"
#include "server/exec/kernel_status.h"

namespace normd {

CpuLane::CpuLane(std::string name, const norm::cpu::Executor& kernels, BufferPool& pool,
                 LaneMetrics& metrics, const Clock& clock)
    : name_(std::move(name)), kernels_(kernels), pool_(pool), metrics_(metrics), clock_(clock) {}

absl::Status CpuLane::Execute(std::unique_ptr<Batch> batch) {
  const TimePoint start = clock_.Now();
  for (std::unique_ptr<Request>& request : batch->requests) {
    absl::Status status = CheckWanted(*request, start);
    if (status.ok()) status = Prepare(request);
    if (!status.ok()) Fail(std::move(request), std::move(status));
  }
  const TimePoint gathered = clock_.Now();
  absl::Status status;
  if (!work_.empty()) {
    status =
        FromKernel(kernels_.Normalize(batch->model->Spec(batch->dtype), batch->model->host_params(),
                                      segments_.data(), segments_.size()));
  }
  const TimePoint computed = clock_.Now();

  BatchInfo info{batch->id, static_cast<std::int64_t>(work_.size()), 0, name_};
  for (const Work& work : work_) info.bytes += work.request->geometry.bytes;
  if (!work_.empty()) batch->model->metrics().RecordBatch(info.requests, info.bytes);
  // The requests' own references keep the model; with the last of them nothing of the batch is
  // left.
  batch.reset();
  for (Work& work : work_) {
    work.request->stages[Stage::kGather] = gathered - start;
    work.request->stages[Stage::kCompute] = computed - gathered;
    if (status.ok()) {
      Complete(std::move(work.request), std::move(work.output), info);
    } else {
      Fail(std::move(work.request), status);
    }
  }
  work_.clear();
  segments_.clear();
  metrics_.AddBusy(clock_.Now() - start);
  return absl::OkStatus();
}

// Takes the request into the batch's work on success.
absl::Status CpuLane::Prepare(std::unique_ptr<Request>& request) {
  // Before the input is looked at: a size that cannot be had is the first thing to know.
  Buffer output;
  std::byte* y = request->output.data();
  if (request->output.empty()) {
    absl::StatusOr<Buffer> taken = pool_.Take(request->geometry.bytes);
    if (!taken.ok()) return taken.status();
    output = *std::move(taken);
    y = output.data();
  }
  if (absl::Status status = CheckMemory(*request); !status.ok()) return status;
  const std::byte* x = InPlaceInput(*request);
  if (x == nullptr) {
    GatherInput(*request, y);
    x = y;
  }
  segments_.push_back({x, y, request->geometry.samples, request->geometry.spatial});
  work_.push_back({std::move(request), std::move(output)});
  return absl::OkStatus();
}

}  // namespace normd
