// The fused layer on a lane.

#include <algorithm>
#include <array>
#include <utility>
#include <variant>

#include "absl/container/inlined_vector.h"
#include "server/exec/device/device_lane.h"
#include "server/exec/device/device_linear_model.h"

namespace normd {
namespace {

using Segments = absl::InlinedVector<norm::LinearNormSegment, 16>;

bool HasY(const DeviceWave::Item& item) { return item.readers.size() > 1; }

}  // namespace

absl::Status DeviceLane::RunLinearMapped(const Batch& batch, DeviceWave& wave) {
  const TimePoint begin = clock_.Now();
  Segments segments;
  {
    DeviceRange range(device_, "gather");
    std::byte* x = staging_->idle_chunk();
    for (DeviceWave::Item& item : wave.items) {
      const Request& request = *item.request;
      std::byte* out = item.output.data();
      segments.push_back({MappedInput(item, 0, x), HasY(item) ? MappedInput(item, 1, out) : nullptr,
                          out, request.geometry.samples});
      x += DeviceWave::RoundUp(DeviceWave::FrontBytes(request));
      if (!item.staged) item.request->ReleaseInputs();
    }
  }
  wave.times[Stage::kGather] = clock_.Now() - begin;
  return ComputeMapped(wave, [&] { return LaunchLinear(batch, wave, segments); });
}

absl::Status DeviceLane::RunLinear(const Batch& batch, DeviceWave& wave) {
  std::array<PieceMarks, 1> marks;
  absl::Status status = EnqueueLinear(batch, wave, marks[0]);
  return Finish(wave, marks, std::move(status));
}

absl::Status DeviceLane::EnqueueLinear(const Batch& batch, DeviceWave& wave, PieceMarks& marks) {
  absl::Status status = AddMark(*in_, marks.copy_in.begin);
  Segments segments;
  for (DeviceWave::Item& item : wave.items) {
    const Geometry& geometry = item.request->geometry;
    std::byte* x = arena_.data() + item.x_offset;
    std::byte* out = arena_.data() + item.result_offset;
    const std::array<std::byte*, 2> targets = {x, out};
    for (std::size_t i = 0; i < item.readers.size() && status.ok(); ++i) {
      status = CopyIn(item, i, 0, targets[i], static_cast<std::size_t>(geometry.inputs[i].bytes));
    }
    segments.push_back({x, HasY(item) ? out : nullptr, out, geometry.samples});
  }
  if (status.ok()) status = staging_->Send(*in_);
  if (status.ok()) status = Pass(*in_, marks.copy_in.end, *compute_, marks.compute.begin);
  if (!status.ok()) return status;
  {
    DeviceRange range(device_, "compute");
    status = LaunchLinear(batch, wave, segments);
  }
  if (status.ok()) status = Pass(*compute_, marks.compute.end, *out_, marks.copy_out.begin);
  for (std::size_t i = 0; i < wave.items.size() && status.ok(); ++i) {
    status = CopyOut(wave, i, 0, wave.items[i].output.size());
  }
  return status.ok() ? AddMark(*out_, marks.copy_out.end) : status;
}

absl::Status DeviceLane::LaunchLinear(const Batch& batch, const DeviceWave& wave,
                                      absl::Span<const norm::LinearNormSegment> segments) {
  const auto& model = static_cast<const DeviceLinearModel&>(*batch.model->backend_state());
  norm::LinearNormSpec spec = std::get<LinearNormProgram>(batch.model->program()).spec;
  spec.dtype = batch.dtype;
  for (std::size_t i = 0; i < kPrecisionCount; ++i) {
    spec.precision = static_cast<norm::Precision>(i);
    Segments chosen;
    for (std::size_t j = 0; j < segments.size(); ++j) {
      if (wave.items[j].request->options.precision == spec.precision) chosen.push_back(segments[j]);
    }
    if (chosen.empty()) continue;
    absl::Status status = compute_->LinearNorm(
        spec, model.prepared(options_.device_index, spec.precision), chosen.data(), chosen.size(),
        model.workspace(options_.device_index, options_.lane_index));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace normd
