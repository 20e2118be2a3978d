#include "server/exec/device/device_lane.h"

#include <algorithm>
#include <cassert>
#include <new>
#include <optional>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "server/exec/device/device_model.h"
#include "server/exec/gather.h"
#include "server/exec/slice_reader.h"

namespace normd {
namespace {

// Where a request's result goes when no pinned block is free: the copy out is slower, but no
// request waits for a client that does not read.
std::optional<Buffer> TakePageable(std::size_t bytes) {
  constexpr std::align_val_t kAlignment{DeviceWave::kAlignment};
  auto* data =
      static_cast<std::byte*>(::operator new(DeviceWave::RoundUp(bytes), kAlignment, std::nothrow));
  if (data == nullptr) return std::nullopt;
  return Buffer(data, bytes, [data] { ::operator delete(data, kAlignment); });
}

// Of the device on which the lane is.
const norm::NormParams& ParamsOn(std::size_t device_index, const Batch& batch) {
  return static_cast<const DeviceModel&>(*batch.model->backend_state()).params(device_index);
}

}  // namespace

DeviceLane::DeviceLane(Device& device, PinnedPool& pool, LaneMetrics& metrics, const Clock& clock,
                       const DeviceLaneOptions& options)
    : device_(device),
      pool_(pool),
      metrics_(metrics),
      clock_(clock),
      options_(options),
      name_(absl::StrCat(device.name(), "/", options.lane_index)) {}

DeviceLane::~DeviceLane() = default;

absl::Status DeviceLane::AddMark(DeviceStream& stream, DeviceStream::Mark& target) {
  absl::StatusOr<DeviceStream::Mark> added = stream.AddMark();
  if (added.ok()) target = *added;
  return added.status();
}

absl::StatusOr<std::unique_ptr<DeviceLane>> DeviceLane::Create(Device& device, PinnedPool& pool,
                                                               LaneMetrics& metrics,
                                                               const Clock& clock,
                                                               const DeviceLaneOptions& options) {
  assert(options.streams >= 1);
  std::unique_ptr<DeviceLane> lane(new DeviceLane(device, pool, metrics, clock, options));
  absl::StatusOr<Buffer> arena = device.Allocate(MemoryKind::kDevice, options.arena_bytes);
  if (!arena.ok()) return arena.status();
  lane->arena_ = *std::move(arena);
  absl::StatusOr<std::unique_ptr<Staging>> staging =
      Staging::Create(device, clock, options.chunk_bytes, options.chunks);
  if (!staging.ok()) return staging.status();
  lane->staging_ = *std::move(staging);
  for (int i = 0; i < options.streams; ++i) {
    absl::StatusOr<std::unique_ptr<DeviceStream>> stream = device.CreateStream();
    if (!stream.ok()) return stream.status();
    lane->streams_.push_back(*std::move(stream));
  }
  return lane;
}

absl::Status DeviceLane::Execute(std::unique_ptr<Batch> batch) {
  const TimePoint begin = clock_.Now();
  BatchInfo info{batch->id, 0, 0, name_};
  for (std::unique_ptr<Request>& request : batch->requests) {
    absl::Status status = CheckWanted(*request, begin);
    if (status.ok()) status = CheckMemory(*request);
    if (!status.ok()) {
      Fail(std::move(request), std::move(status));
      continue;
    }
    ++info.requests;
    info.bytes += request->geometry.InputBytes();
  }
  std::erase(batch->requests, nullptr);
  absl::Status status;
  if (!device_.usable()) {
    status = absl::InternalError(absl::StrCat(name_, ": the device is no longer usable"));
    for (auto& request : batch->requests) Fail(std::move(request), status);
  } else if (!batch->requests.empty()) {
    batch->model->metrics().RecordBatch(info.requests, info.bytes);
    status = ExecuteLive(*batch, info);
  }
  metrics_.AddBusy(clock_.Now() - begin);
  if (!status.ok()) metrics_.RecordRetired();
  return status;
}

absl::Status DeviceLane::ExecuteLive(Batch& batch, const BatchInfo& info) {
  absl::Status status;
  std::size_t next = 0;
  while (next < batch.requests.size() && status.ok()) {
    DeviceWave wave;
    next = FillWave(batch, next, wave);
    status = Run(batch, wave);
    metrics_.AddCopied(static_cast<std::int64_t>(wave.copied_in_bytes),
                       static_cast<std::int64_t>(wave.copied_out_bytes));
    if (!status.ok()) {
      status = absl::Status(status.code(), absl::StrCat(name_, ": ", status.message()));
    }
    for (DeviceWave::Item& item : wave.items) {
      if (!status.ok()) {
        Fail(std::move(item.request), status);
        continue;
      }
      for (Stage stage : {Stage::kGather, Stage::kCopyIn, Stage::kCompute, Stage::kCopyOut}) {
        item.request->stages[stage] = wave.times[stage];
      }
      Complete(std::move(item.request), std::move(item.block), info);
    }
    // Any other error is the batch's own: it was refused, and the device is as before.
    if (!absl::IsInternal(status) && device_.usable()) status = absl::OkStatus();
  }
  for (; next < batch.requests.size(); ++next) Fail(std::move(batch.requests[next]), status);
  return status;
}

std::size_t DeviceLane::FillWave(Batch& batch, std::size_t next, DeviceWave& wave) {
  for (; next < batch.requests.size(); ++next) {
    std::unique_ptr<Request>& request = batch.requests[next];
    const std::size_t bytes = DeviceWave::ArenaBytes(*request);
    if (bytes > arena_.size()) {
      absl::Status status = absl::ResourceExhaustedError(
          absl::StrCat("tensor: ", DeviceWave::TensorBytes(*request),
                       " bytes, the lane's device memory holds ", arena_.size()));
      Fail(std::move(request), std::move(status));
      continue;
    }
    if (wave.arena_bytes + bytes > arena_.size()) break;
    wave.Add(std::move(request));
  }
  return next;
}

bool DeviceLane::TakeOutputs(DeviceWave& wave) {
  bool all_pinned = true;
  for (DeviceWave::Item& item : wave.items) {
    const std::size_t bytes = static_cast<std::size_t>(item.request->geometry.bytes);
    bool pinned = false;
    item.output = item.request->output;
    if (item.output.empty()) {
      std::optional<Buffer> block = pool_.Take(bytes);
      pinned = block.has_value();
      if (!block) block = TakePageable(bytes);
      if (!block) {
        Fail(std::move(item.request),
             absl::ResourceExhaustedError(absl::StrCat("output: no memory for ", bytes, " bytes")));
        continue;
      }
      item.block = *std::move(block);
      item.output = MutableBytes(item.block.data(), bytes);
    }
    all_pinned = all_pinned && pinned;
  }
  std::erase_if(wave.items, [](const DeviceWave::Item& item) { return item.request == nullptr; });
  return all_pinned;
}

absl::Status DeviceLane::Run(const Batch& batch, DeviceWave& wave) {
  const bool mapped = TakeOutputs(wave) && wave.link_bytes <= options_.mapped_bytes;
  if (batch.model->linear() == nullptr) {
    return mapped ? RunMapped(batch, wave) : RunPieces(batch, wave);
  }
  // The x of a mapped batch lies in a chunk.
  return mapped && wave.front_bytes <= staging_->chunk_bytes() ? RunLinearMapped(batch, wave)
                                                               : RunLinear(batch, wave);
}

absl::Status DeviceLane::RunMapped(const Batch& batch, DeviceWave& wave) {
  const TimePoint begin = clock_.Now();
  absl::InlinedVector<norm::Segment, 16> segments;
  {
    DeviceRange range(device_, "gather");
    for (DeviceWave::Item& item : wave.items) {
      GatherInput(*item.request, 0, item.output.data());
      item.request->ReleaseInputs();
      const Geometry& geometry = item.request->geometry;
      segments.push_back(
          {item.output.data(), item.output.data(), geometry.samples, geometry.spatial});
    }
  }
  wave.times[Stage::kGather] = clock_.Now() - begin;
  const norm::NormSpec spec = batch.model->Spec(batch.dtype);
  const norm::NormParams& params = ParamsOn(options_.device_index, batch);
  return ComputeMapped(wave, [&](DeviceStream& stream) {
    // One launch for each run of requests that cover the same channels.
    absl::Status status;
    for (std::size_t at = 0; status.ok() && at < segments.size();) {
      const ChannelRange channels = wave.items[at].request->geometry.channels;
      std::size_t end = at + 1;
      while (end < segments.size() && wave.items[end].request->geometry.channels == channels) ++end;
      status = stream.Normalize(SpecOf(spec, channels), ParamsOf(params, channels),
                                segments.data() + at, end - at);
      at = end;
    }
    return status;
  });
}

absl::Status DeviceLane::ComputeMapped(DeviceWave& wave,
                                       absl::FunctionRef<absl::Status(DeviceStream&)> launch) {
  DeviceRange range(device_, "compute");
  DeviceStream& stream = *streams_.front();
  absl::StatusOr<DeviceStream::Mark> first = stream.AddMark();
  absl::Status status = first.ok() ? launch(stream) : first.status();
  absl::StatusOr<DeviceStream::Mark> last = stream.AddMark();
  if (status.ok()) status = last.ok() ? stream.WaitFor(*last) : last.status();
  if (status.ok()) {
    wave.times[Stage::kCompute] = stream.Between(*first, *last);
    // The kernels read and write each byte once, over the link.
    for (const DeviceWave::Item& item : wave.items) {
      wave.copied_in_bytes += static_cast<std::size_t>(item.request->geometry.InputBytes());
      wave.copied_out_bytes += item.output.size();
    }
  } else {
    static_cast<void>(Drain());
  }
  stream.ClearMarks();
  return status;
}

absl::Status DeviceLane::RunPieces(const Batch& batch, DeviceWave& wave) {
  std::vector<Geometry> geometries;
  geometries.reserve(wave.items.size());
  for (const DeviceWave::Item& item : wave.items) geometries.push_back(item.request->geometry);
  const std::vector<Piece> pieces = CutIntoPieces(batch.model->Spec(batch.dtype), geometries,
                                                  static_cast<std::int64_t>(options_.piece_bytes));
  std::vector<PieceMarks> marks(pieces.size());
  absl::Status status;
  for (std::size_t i = 0; i < pieces.size() && status.ok(); ++i) {
    status = EnqueuePiece(batch, wave, pieces[i], *streams_[i % streams_.size()], marks[i]);
  }
  return Finish(wave, marks, std::move(status));
}

absl::Status DeviceLane::EnqueuePiece(const Batch& batch, DeviceWave& wave, const Piece& piece,
                                      DeviceStream& stream, PieceMarks& marks) {
  marks.stream = &stream;
  if (absl::Status status = AddMark(stream, marks.begin); !status.ok()) return status;
  absl::InlinedVector<norm::Segment, 16> segments;
  for (const PieceSegment& segment : piece.segments) {
    DeviceWave::Item& item = wave.items[segment.request];
    std::byte* rows = arena_.data() + item.x_offset + segment.request_offset;
    absl::Status status =
        staging_->Gather(item.readers[0], rows, static_cast<std::size_t>(segment.bytes), stream);
    if (!status.ok()) return status;
    segments.push_back({rows, rows, segment.samples, segment.spatial});
  }
  if (absl::Status status = staging_->Send(stream); !status.ok()) return status;
  if (absl::Status status = AddMark(stream, marks.copied_in); !status.ok()) return status;
  {
    DeviceRange range(device_, "compute");
    absl::Status status =
        stream.Normalize(SpecOf(batch.model->Spec(batch.dtype), piece.channels),
                         ParamsOf(ParamsOn(options_.device_index, batch), piece.channels),
                         segments.data(), segments.size());
    if (!status.ok()) return status;
  }
  if (absl::Status status = AddMark(stream, marks.computed); !status.ok()) return status;
  for (const PieceSegment& segment : piece.segments) {
    absl::Status status =
        CopyOut(wave, segment.request, static_cast<std::size_t>(segment.request_offset),
                static_cast<std::size_t>(segment.bytes), stream);
    if (!status.ok()) return status;
  }
  return AddMark(stream, marks.copied_out);
}

absl::Status DeviceLane::CopyOut(DeviceWave& wave, std::size_t index, std::size_t offset,
                                 std::size_t bytes, DeviceStream& stream) {
  DeviceRange range(device_, "copy_out");
  const DeviceWave::Item& item = wave.items[index];
  absl::Status status = stream.CopyOut(item.output.data() + offset,
                                       arena_.data() + item.result_offset + offset, bytes);
  if (status.ok()) wave.copied_out_bytes += bytes;
  return status;
}

absl::Status DeviceLane::Finish(DeviceWave& wave, absl::Span<const PieceMarks> marks,
                                absl::Status status) {
  for (DeviceWave::Item& item : wave.items) item.request->ReleaseInputs();
  if (absl::Status drained = Drain(); status.ok()) status = drained;
  if (status.ok()) {
    for (const PieceMarks& m : marks) {
      wave.times[Stage::kCopyIn] += m.stream->Between(m.begin, m.copied_in);
      wave.times[Stage::kCompute] += m.stream->Between(m.copied_in, m.computed);
      wave.times[Stage::kCopyOut] += m.stream->Between(m.computed, m.copied_out);
    }
  }
  wave.times[Stage::kGather] = staging_->gather_time();
  wave.copied_in_bytes = staging_->copied_bytes();
  staging_->Reset();
  for (const auto& stream : streams_) stream->ClearMarks();
  return status;
}

absl::Status DeviceLane::Drain() {
  absl::Status first;
  for (const auto& stream : streams_) {
    absl::Status status = stream->Wait();
    if (first.ok()) first = std::move(status);
  }
  return first;
}

}  // namespace normd
