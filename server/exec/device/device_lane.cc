#include "server/exec/device/device_lane.h"

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <limits>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/retry_after.h"
#include "server/exec/gather.h"

namespace normd {

DeviceLane::DeviceLane(Device& device, PinnedPool& pool, LaneMetrics& metrics, const Clock& clock,
                       const DeviceLaneOptions& options)
    : device_(device),
      metrics_(metrics),
      clock_(clock),
      options_(options),
      access_{false, device.ordinal()},
      results_(pool, clock) {}

absl::StatusOr<std::unique_ptr<DeviceLane>> DeviceLane::Create(Device& device, PinnedPool& pool,
                                                               LaneMetrics& metrics,
                                                               const Clock& clock,
                                                               const DeviceLaneOptions& options) {
  std::unique_ptr<DeviceLane> lane(new DeviceLane(device, pool, metrics, clock, options));
  absl::StatusOr<Buffer> arena = device.Allocate(MemoryKind::kDevice, options.arena_bytes);
  if (!arena.ok()) return arena.status();
  lane->arena_ = *std::move(arena);
  absl::StatusOr<std::unique_ptr<Staging>> staging =
      Staging::Create(device, clock, options.chunk_bytes, options.chunks);
  if (!staging.ok()) return staging.status();
  lane->staging_ = *std::move(staging);
  const int streams = options.overlap ? 3 : 1;
  for (int i = 0; i < streams; ++i) {
    absl::StatusOr<std::unique_ptr<DeviceStream>> stream = device.CreateStream(
        i == streams / 2 ? std::max(options.arena_bytes, options.mapped_bytes) : 0);
    if (!stream.ok()) return stream.status();
    lane->streams_.all.push_back(*std::move(stream));
  }
  return lane;
}

absl::Status DeviceLane::Execute(std::unique_ptr<Batch> batch) {
  const TimePoint begin = clock_.Now();
  BatchInfo info{batch->id, 0, 0, name()};
  for (std::unique_ptr<Request>& request : batch->requests) {
    absl::Status status = CheckWanted(*request, begin);
    if (status.ok()) status = CheckMemory(*request, access_);
    if (!status.ok()) {
      Fail(std::move(request), std::move(status));
      continue;
    }
    ++info.requests;
    info.bytes += request->geometry.InputBytes();
  }
  auto& requests = batch->requests;
  requests.erase(std::remove(requests.begin(), requests.end(), nullptr), requests.end());
  absl::Status status;
  if (!device_.usable()) {
    status = absl::InternalError(absl::StrCat(name(), ": the device is no longer usable"));
    SetRetryAfter(Duration(0), status);
    for (auto& request : requests) Fail(std::move(request), status);
  } else if (!requests.empty()) {
    batch->model->metrics().RecordBatch(info.requests, info.bytes);
    status = ExecuteLive(*batch, info);
  }
  metrics_.AddBusy(clock_.Now() - begin);
  if (!status.ok()) metrics_.RecordRetired();
  return status;
}

absl::Status DeviceLane::ExecuteLive(Batch& batch, const BatchInfo& info) {
  assert(batch.model->backend_state() != nullptr && "the model was not prepared");
  const auto& program = static_cast<const DeviceProgram&>(*batch.model->backend_state());
  const bool is_large = static_cast<std::size_t>(batch.bytes) > options_.mapped_bytes;
  DeviceWaves waves(batch, is_large, program.overwrites(), access_, arena_.size());
  absl::Status status;
  while (!waves.Done() && status.ok()) {
    DeviceWave wave = waves.Next();
    try {
      status = Run(batch, program, wave);
    } catch (const std::bad_alloc&) {
      Reset();
      status = NoMemory();
    }
    metrics_.AddCopied(static_cast<std::int64_t>(wave.copied_in_bytes),
                       static_cast<std::int64_t>(wave.copied_out_bytes));
    if (!status.ok()) {
      status = absl::Status(status.code(), absl::StrCat(name(), ": ", status.message()));
    }
    // Any other error is the batch's own: it was refused, and the device is unchanged.
    const bool device_failed = absl::IsInternal(status) || !device_.usable();
    if (device_failed) SetRetryAfter(Duration(0), status);
    End(wave, status, info);
    if (!device_failed) status = absl::OkStatus();
  }
  for (std::unique_ptr<Request>& request : batch.requests) {
    if (request != nullptr) Fail(std::move(request), status);
  }
  return status;
}

absl::Status DeviceLane::Run(const Batch& batch, const DeviceProgram& program, DeviceWave& wave) {
  results_.Take(program, wave);
  const DeviceSite site = {streams_.compute(), options_.device_index, options_.lane_index};
  const DeviceWork work = {program, batch.dtype, site,      device_,
                           clock_,  streams_,    *staging_, arena_.data()};
  const bool mapped = CanRunMapped(wave, options_.mapped_bytes, *staging_);
  if (!mapped || wave.request_bytes > options_.mapped_bytes) LargeBatch();
  if (mapped) return RunMapped(work, wave);
  if (!program.gains_from_pieces()) {
    return RunPieces(work, CutRule(), std::numeric_limits<std::int64_t>::max(), wave);
  }
  return RunPieces(work, batch.model->cut(), static_cast<std::int64_t>(options_.piece_bytes), wave);
}

// Waits for what a wave has enqueued, and forgets it.
void DeviceLane::Reset() {
  streams_.Drain();
  staging_->Reset();
  for (const auto& stream : streams_.all) stream->ClearMarks();
}

void DeviceLane::End(DeviceWave& wave, const absl::Status& status, const BatchInfo& info) {
  for (DeviceWave::Item& item : wave.items) {
    if (!status.ok()) {
      Fail(std::move(item.request), status);
      continue;
    }
    for (Stage stage : {Stage::kGather, Stage::kCopyIn, Stage::kCompute, Stage::kCopyOut}) {
      item.request->stages[stage] += wave.times[stage];
    }
    OutputBuffers outputs = results_.HandOut(item);
    Complete(std::move(item.request), std::move(outputs), info);
  }
}

}  // namespace normd
