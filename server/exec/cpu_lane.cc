#include "server/exec/cpu_lane.h"

#include <cassert>
#include <cstddef>
#include <new>

#include "absl/cleanup/cleanup.h"
#include "server/exec/gather.h"

namespace normd {

CpuLane::CpuLane(std::string name, const norm::cpu::Executor& kernels, BufferPool& pool,
                 LaneMetrics& metrics, const Clock& clock)
    : name_(std::move(name)), resources_{kernels, pool, clock}, metrics_(metrics) {}

CpuRun* CpuLane::RunFor(const CpuProgram& program) {
  const std::type_index type(typeid(program));
  for (const auto& [known, run] : runs_) {
    if (known == type) return run.get();
  }
  try {
    return runs_.emplace_back(type, program.MakeRun(resources_)).second.get();
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

absl::Status CpuLane::Execute(std::unique_ptr<Batch> batch) {
  const TimePoint start = resources_.clock.Now();
  assert(batch->model->backend_state() != nullptr && "the model was not prepared");
  const auto& program = static_cast<const CpuProgram&>(*batch->model->backend_state());
  CpuRun* const run = RunFor(program);
  if (run == nullptr) return absl::OkStatus();  // The requests end with their batch.
  run->Begin(program, batch->dtype);
  // If memory runs out while requests are completed, those that are left end with their items.
  const absl::Cleanup forget = [this] { items_.clear(); };
  BatchInfo info;
  try {
    for (std::unique_ptr<Request>& request : batch->requests) {
      absl::Status status = CheckWanted(*request, start);
      if (status.ok()) status = Prepare(request, *run);
      if (!status.ok()) Fail(std::move(request), std::move(status));
    }
    info = {batch->id, static_cast<std::int64_t>(items_.size()), 0, name_};
    for (const CpuItem& item : items_) info.bytes += item.request->geometry.InputBytes();
    if (!items_.empty()) batch->model->metrics().RecordBatch(info.requests, info.bytes);
  } catch (const std::bad_alloc&) {
    run->Abandon(NoMemory());
  }
  run->Compute();

  // Only the requests' references keep the model; with the last of them nothing of the batch is
  // left.
  const absl::Status computed = run->status();
  batch.reset();
  for (CpuItem& item : items_) {
    item.request->stages[Stage::kGather] = run->computed() - start - run->compute_time();
    item.request->stages[Stage::kCompute] = run->compute_time();
    if (computed.ok()) {
      Complete(std::move(item.request), std::move(item.buffers), info);
    } else {
      Fail(std::move(item.request), computed);
    }
  }
  metrics_.AddBusy(resources_.clock.Now() - start);
  return absl::OkStatus();
}

// Takes the request into the batch's work on success.
absl::Status CpuLane::Prepare(std::unique_ptr<Request>& request, CpuRun& run) {
  CpuItem item;
  // Before the inputs are read: an impossible size is the first thing to report.
  absl::Status status = TakeOutputs(*request, item);
  if (status.ok()) status = CheckMemory(*request, access());
  if (!status.ok()) return status;
  item.request = std::move(request);
  status = run.Place(item);
  if (status.ok()) {
    items_.push_back(std::move(item));
  } else {
    request = std::move(item.request);
  }
  return status;
}

absl::Status CpuLane::TakeOutputs(const Request& request, CpuItem& item) {
  for (std::size_t i = 0; i < request.geometry.outputs.size(); ++i) {
    const MutableBytes named = NamedOutput(request, i);
    Buffer& buffer = item.buffers.emplace_back();
    if (request.geometry.outputs[i].bytes == 0) {
      item.outputs.push_back(nullptr);
      continue;
    }
    if (named.empty()) {
      absl::StatusOr<Buffer> taken = resources_.pool.Take(request.geometry.outputs[i].bytes);
      if (!taken.ok()) return taken.status();
      buffer = *std::move(taken);
    }
    item.outputs.push_back(named.empty() ? buffer.data() : named.data());
  }
  return absl::OkStatus();
}

}  // namespace normd
