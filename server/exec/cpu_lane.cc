#include "server/exec/cpu_lane.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <variant>

#include "server/exec/cpu_model.h"
#include "server/exec/gather.h"
#include "server/exec/kernel_status.h"

namespace normd {
namespace {

// How much is gathered between two calls of the kernels, for each of their threads. What has just
// been gathered is then still in a cache when it is computed in place: a batch of 64 sliced
// requests of 256 KiB takes three quarters of the time that gathering it as a whole takes. A
// fraction of this is not faster, and each call costs a meeting of the threads.
constexpr std::int64_t kGatherBytesPerThread = std::int64_t{1} << 20;

}  // namespace

CpuLane::CpuLane(std::string name, const norm::cpu::Executor& kernels, BufferPool& pool,
                 LaneMetrics& metrics, const Clock& clock)
    : name_(std::move(name)),
      kernels_(kernels),
      gather_bytes_(kGatherBytesPerThread * kernels.max_threads()),
      pool_(pool),
      metrics_(metrics),
      clock_(clock) {}

absl::Status CpuLane::Execute(std::unique_ptr<Batch> batch) {
  const TimePoint start = clock_.Now();
  Run run;
  run.dtype = batch->dtype;
  if (const auto* program = std::get_if<NormProgram>(&batch->model->program())) {
    run.spec = program->Spec(batch->dtype);
    run.params = program->params;
  } else {
    run.layer = &static_cast<const CpuModel&>(*batch->model->backend_state()).layer();
  }
  for (std::unique_ptr<Request>& request : batch->requests) {
    absl::Status status = CheckWanted(*request, start);
    if (status.ok()) status = Prepare(request, run);
    if (!status.ok()) Fail(std::move(request), std::move(status));
  }
  Compute(run);

  BatchInfo info{batch->id, static_cast<std::int64_t>(work_.size()), 0, name_};
  for (const Work& work : work_) info.bytes += work.request->geometry.InputBytes();
  if (!work_.empty()) batch->model->metrics().RecordBatch(info.requests, info.bytes);
  // The requests' own references keep the model; with the last of them nothing of the batch is
  // left.
  batch.reset();
  for (Work& work : work_) {
    work.request->stages[Stage::kGather] = run.computed - start - run.compute_time;
    work.request->stages[Stage::kCompute] = run.compute_time;
    if (run.status.ok()) {
      Complete(std::move(work.request), std::move(work.output), info);
    } else {
      Fail(std::move(work.request), run.status);
    }
  }
  work_.clear();
  metrics_.AddBusy(clock_.Now() - start);
  return absl::OkStatus();
}

// Takes the request into the batch's work on success.
absl::Status CpuLane::Prepare(std::unique_ptr<Request>& request, Run& run) {
  // Before the inputs are looked at: a size that cannot be had is the first thing to know.
  Work work;
  const MutableBytes named = NamedOutput(*request, 0);
  std::byte* out = named.data();
  if (named.empty()) {
    absl::StatusOr<Buffer> taken = pool_.Take(request->geometry.outputs[0].bytes);
    if (!taken.ok()) return taken.status();
    work.output = *std::move(taken);
    out = work.output.data();
  }
  if (absl::Status status = CheckMemory(*request); !status.ok()) return status;
  work.request = std::move(request);
  absl::Status status = run.layer != nullptr ? PlaceLinear(work, out) : Place(work, out, run);
  if (status.ok()) {
    work_.push_back(std::move(work));
  } else {
    request = std::move(work.request);
  }
  return status;
}

absl::Status CpuLane::Place(Work& work, std::byte* out, Run& run) {
  Request& request = *work.request;
  const Geometry& geometry = request.geometry;
  Select(geometry.channels, run);
  const std::byte* x = InPlaceInput(request, 0);
  if (x != nullptr || geometry.inputs[0].bytes == 0) {
    segments_.push_back({x, out, geometry.samples, geometry.spatial});
  } else {
    TakeInput(request, out, run);
  }
  return absl::OkStatus();
}

absl::Status CpuLane::PlaceLinear(Work& work, std::byte* out) {
  Request& request = *work.request;
  const Geometry& geometry = request.geometry;
  const bool has_y = request.inputs.size() > 1;
  const std::byte* x = InPlaceInput(request, 0);
  const std::byte* y = has_y ? InPlaceInput(request, 1) : nullptr;
  const bool in_place = x != nullptr || y != nullptr;
  if (x == nullptr && geometry.samples > 0) {
    absl::StatusOr<Buffer> taken = pool_.Take(geometry.inputs[0].bytes);
    if (!taken.ok()) return taken.status();
    work.gathered = *std::move(taken);
    GatherInput(request, 0, work.gathered.data());
    x = work.gathered.data();
  }
  if (y == nullptr && has_y && geometry.samples > 0) {
    GatherInput(request, 1, out);
    y = out;
  }
  linear_segments_.push_back({x, y, out, geometry.samples});
  if (!in_place) request.ReleaseInputs();
  return absl::OkStatus();
}

// What covers other channels needs a call of its own.
void CpuLane::Select(const ChannelRange& channels, Run& run) {
  if (channels == run.channels) return;
  if (!segments_.empty()) Compute(run);
  run.channels = channels;
}

// A sample is computed by its own alone, so neither the cuts nor where it lies change its bits.
void CpuLane::TakeInput(Request& request, std::byte* to, Run& run) {
  const Geometry& geometry = request.geometry;
  const std::int64_t sample_bytes = geometry.inputs[0].bytes / geometry.samples;
  SliceReader input(request.inputs.front().views);
  bool in_place = false;
  for (std::int64_t left = geometry.samples; left > 0;) {
    const ConstBytes piece = input.Piece();
    std::int64_t samples = std::min(static_cast<std::int64_t>(piece.size()) / sample_bytes, left);
    if (samples > 0) {
      segments_.push_back({piece.data(), to, samples, geometry.spatial});
      input.Skip(static_cast<std::size_t>(samples * sample_bytes));
      in_place = true;
    } else {
      samples = 1;
      Gather(input, geometry, to, run);
    }
    to += samples * sample_bytes;
    left -= samples;
  }
  if (!in_place) request.ReleaseInputs();
}

// One sample.
void CpuLane::Gather(SliceReader& input, const Geometry& geometry, std::byte* to, Run& run) {
  const std::int64_t bytes = geometry.inputs[0].bytes / geometry.samples;
  input.Read(to, static_cast<std::size_t>(bytes));
  segments_.push_back({to, to, 1, geometry.spatial});
  run.gathered_bytes += bytes;
  if (run.gathered_bytes >= gather_bytes_) Compute(run);
}

void CpuLane::Compute(Run& run) {
  const TimePoint start = clock_.Now();
  if (run.status.ok() && !linear_segments_.empty()) {
    run.status =
        FromKernel(run.layer->Compute(run.dtype, linear_segments_.data(), linear_segments_.size()));
  }
  linear_segments_.clear();
  if (run.status.ok() && !segments_.empty()) {
    run.status = FromKernel(kernels_.Normalize(SpecOf(run.spec, run.channels),
                                               ParamsOf(run.params, run.channels), segments_.data(),
                                               segments_.size()));
  }
  segments_.clear();
  run.gathered_bytes = 0;
  run.computed = clock_.Now();
  run.compute_time += run.computed - start;
}

}  // namespace normd
