// The fused layer on a lane.

#include <algorithm>
#include <array>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "server/exec/device/device_lane.h"
#include "server/exec/device/device_linear_model.h"
#include "server/exec/gather.h"

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
      GatherInput(*item.request, 0, x);
      if (HasY(item)) GatherInput(*item.request, 1, item.output.data());
      segments.push_back({x, HasY(item) ? item.output.data() : nullptr, item.output.data(),
                          item.request->geometry.samples});
      x += DeviceWave::RoundUp(DeviceWave::FrontBytes(*item.request));
      item.request->ReleaseInputs();
    }
  }
  wave.times[Stage::kGather] = clock_.Now() - begin;
  return ComputeMapped(
      wave, [&](DeviceStream& stream) { return LaunchLinear(batch, wave, segments, stream); });
}

absl::Status DeviceLane::RunLinear(const Batch& batch, DeviceWave& wave) {
  std::array<PieceMarks, 1> marks;
  absl::Status status = EnqueueLinear(batch, wave, *streams_.front(), marks[0]);
  return Finish(wave, marks, std::move(status));
}

absl::Status DeviceLane::EnqueueLinear(const Batch& batch, DeviceWave& wave, DeviceStream& stream,
                                       PieceMarks& marks) {
  marks.stream = &stream;
  if (absl::Status status = AddMark(stream, marks.begin); !status.ok()) return status;
  Segments segments;
  for (DeviceWave::Item& item : wave.items) {
    const Geometry& geometry = item.request->geometry;
    std::byte* x = arena_.data() + item.x_offset;
    std::byte* out = arena_.data() + item.result_offset;
    const std::array<std::byte*, kMaxInputs> targets = {x, out};
    for (std::size_t i = 0; i < item.readers.size(); ++i) {
      absl::Status status = staging_->Gather(
          item.readers[i], targets[i], static_cast<std::size_t>(geometry.input_bytes[i]), stream);
      if (!status.ok()) return status;
    }
    segments.push_back({x, HasY(item) ? out : nullptr, out, geometry.samples});
  }
  if (absl::Status status = staging_->Send(stream); !status.ok()) return status;
  if (absl::Status status = AddMark(stream, marks.copied_in); !status.ok()) return status;
  {
    DeviceRange range(device_, "compute");
    absl::Status status = LaunchLinear(batch, wave, segments, stream);
    if (!status.ok()) return status;
  }
  if (absl::Status status = AddMark(stream, marks.computed); !status.ok()) return status;
  for (std::size_t i = 0; i < wave.items.size(); ++i) {
    absl::Status status = CopyOut(wave, i, 0, wave.items[i].output.size(), stream);
    if (!status.ok()) return status;
  }
  return AddMark(stream, marks.copied_out);
}

absl::Status DeviceLane::LaunchLinear(const Batch& batch, const DeviceWave& wave,
                                      absl::Span<const norm::LinearNormSegment> segments,
                                      DeviceStream& stream) {
  const auto& model = static_cast<const DeviceLinearModel&>(*batch.model->backend_state());
  norm::LinearNormSpec spec = *batch.model->linear();
  spec.dtype = batch.dtype;
  for (std::size_t i = 0; i < kPrecisionCount; ++i) {
    spec.precision = static_cast<norm::Precision>(i);
    Segments chosen;
    for (std::size_t j = 0; j < segments.size(); ++j) {
      if (wave.items[j].request->precision == spec.precision) chosen.push_back(segments[j]);
    }
    if (chosen.empty()) continue;
    absl::Status status = stream.LinearNorm(
        spec, model.prepared(options_.device_index, spec.precision), chosen.data(), chosen.size(),
        model.workspace(options_.device_index, options_.lane_index));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace normd
