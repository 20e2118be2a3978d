#include "server/exec/device/device_lane.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <optional>
#include <utility>
#include <variant>

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
      name_(options.name.empty() ? absl::StrCat(device.name(), "/", options.lane_index)
                                 : options.name) {}

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
    lane->streams_.push_back(*std::move(stream));
  }
  lane->in_ = lane->streams_.front().get();
  lane->compute_ = lane->streams_[lane->streams_.size() / 2].get();
  lane->out_ = lane->streams_.back().get();
  return lane;
}

absl::Status DeviceLane::Pass(DeviceStream& stream, DeviceStream::Mark& end, DeviceStream& next,
                              DeviceStream::Mark& begin) {
  absl::Status status = AddMark(stream, end);
  if (&next == &stream) {
    begin = end;
    return status;
  }
  if (status.ok()) status = next.Await(stream, end);
  if (status.ok()) status = AddMark(next, begin);
  return status;
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
        item.request->stages[stage] += wave.times[stage];
      }
      if (item.lent) ReturnLent(item);
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
    const auto bytes = static_cast<std::size_t>(item.request->geometry.outputs[0].bytes);
    bool pinned = false;
    item.output = NamedOutput(*item.request, 0);
    if (item.output.empty()) {
      std::optional<Buffer> block = TakeBlock(item);
      pinned = block.has_value();
      item.lent = pinned && pool_.IsScarce();
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

// A norm may overwrite its input. The device then writes to where the receiving thread wrote, and
// half as much memory passes through the caches.
std::optional<Buffer> DeviceLane::TakeBlock(DeviceWave::Item& item) {
  Request& request = *item.request;
  if (item.staged && std::holds_alternative<NormProgram>(request.model->program()))
    return std::move(request.staged);
  return pool_.Take(static_cast<std::size_t>(request.geometry.outputs[0].bytes));
}

void DeviceLane::ReturnLent(DeviceWave::Item& item) {
  const TimePoint begin = clock_.Now();
  std::optional<Buffer> copy = TakePageable(item.output.size());
  if (!copy) return;
  std::memcpy(copy->data(), item.output.data(), item.output.size());
  item.block = *std::move(copy);
  item.request->stages[Stage::kCopyOut] += clock_.Now() - begin;
}

absl::Status DeviceLane::Run(const Batch& batch, DeviceWave& wave) {
  const bool mapped = TakeOutputs(wave) && wave.link_bytes <= options_.mapped_bytes;
  if (!mapped) LargeBatch();
  if (std::holds_alternative<NormProgram>(batch.model->program())) {
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
      const std::byte* x = MappedInput(item, 0, item.output.data());
      const Geometry& geometry = item.request->geometry;
      segments.push_back({x, item.output.data(), geometry.samples, geometry.spatial});
      if (!item.staged) item.request->ReleaseInputs();
    }
  }
  wave.times[Stage::kGather] = clock_.Now() - begin;
  const norm::NormSpec& spec = std::get<NormProgram>(batch.model->program()).Spec(batch.dtype);
  const norm::NormParams& params = ParamsOn(options_.device_index, batch);
  return ComputeMapped(wave, [&] {
    // One launch for each run of requests that cover the same channels.
    absl::Status status;
    for (std::size_t at = 0; status.ok() && at < segments.size();) {
      const ChannelRange channels = wave.items[at].request->geometry.channels;
      std::size_t end = at + 1;
      while (end < segments.size() && wave.items[end].request->geometry.channels == channels) ++end;
      status = compute_->Normalize(SpecOf(spec, channels), ParamsOf(params, channels),
                                   segments.data() + at, end - at);
      at = end;
    }
    return status;
  });
}

const std::byte* DeviceLane::MappedInput(const DeviceWave::Item& item, std::size_t input,
                                         std::byte* to) {
  if (item.staged) return item.request->inputs[input].views.front().data();
  GatherInput(*item.request, input, to);
  return to;
}

absl::Status DeviceLane::ComputeMapped(DeviceWave& wave, absl::FunctionRef<absl::Status()> launch) {
  DeviceRange range(device_, "compute");
  const TimePoint begin = clock_.Now();
  absl::Status status = launch();
  if (status.ok()) status = compute_->Wait();
  if (!status.ok()) {
    static_cast<void>(Drain());
    return status;
  }
  // Marks around the kernels would cost more than what they would leave out.
  wave.times[Stage::kCompute] = clock_.Now() - begin;
  // The kernels read and write each byte once, over the link.
  for (const DeviceWave::Item& item : wave.items) {
    wave.copied_in_bytes += static_cast<std::size_t>(item.request->geometry.InputBytes());
    wave.copied_out_bytes += item.output.size();
  }
  return status;
}

absl::Status DeviceLane::RunPieces(const Batch& batch, DeviceWave& wave) {
  std::vector<Geometry> geometries;
  geometries.reserve(wave.items.size());
  for (const DeviceWave::Item& item : wave.items) geometries.push_back(item.request->geometry);
  const std::vector<Piece> pieces = CutIntoPieces(batch.model->cut(), geometries,
                                                  static_cast<std::int64_t>(options_.piece_bytes));
  std::vector<PieceMarks> marks(pieces.size());
  absl::Status status;
  for (std::size_t i = 0; i < pieces.size() && status.ok(); ++i) {
    status = EnqueuePiece(batch, wave, pieces[i], marks[i]);
  }
  return Finish(wave, marks, std::move(status));
}

absl::Status DeviceLane::EnqueuePiece(const Batch& batch, DeviceWave& wave, const Piece& piece,
                                      PieceMarks& marks) {
  absl::Status status = AddMark(*in_, marks.copy_in.begin);
  absl::InlinedVector<norm::Segment, 16> segments;
  for (const PieceSegment& segment : piece.segments) {
    if (!status.ok()) return status;
    DeviceWave::Item& item = wave.items[segment.request];
    std::byte* rows = arena_.data() + item.x_offset + segment.request_offset;
    segments.push_back({rows, rows, segment.samples, segment.spatial});
    status = CopyIn(item, 0, static_cast<std::size_t>(segment.request_offset), rows,
                    static_cast<std::size_t>(segment.bytes));
  }
  if (status.ok()) status = staging_->Send(*in_);
  if (status.ok()) status = Pass(*in_, marks.copy_in.end, *compute_, marks.compute.begin);
  if (!status.ok()) return status;
  {
    DeviceRange range(device_, "compute");
    status = compute_->Normalize(
        SpecOf(std::get<NormProgram>(batch.model->program()).Spec(batch.dtype), piece.channels),
        ParamsOf(ParamsOn(options_.device_index, batch), piece.channels), segments.data(),
        segments.size());
  }
  if (status.ok()) status = Pass(*compute_, marks.compute.end, *out_, marks.copy_out.begin);
  for (const PieceSegment& segment : piece.segments) {
    if (!status.ok()) return status;
    status = CopyOut(wave, segment.request, static_cast<std::size_t>(segment.request_offset),
                     static_cast<std::size_t>(segment.bytes));
  }
  return status.ok() ? AddMark(*out_, marks.copy_out.end) : status;
}

absl::Status DeviceLane::CopyIn(DeviceWave::Item& item, std::size_t input, std::size_t offset,
                                std::byte* target, std::size_t bytes) {
  const Request& request = *item.request;
  if (!item.staged) return staging_->Gather(item.readers[input], target, bytes, *in_);
  DeviceRange range(device_, "copy_in");
  if (absl::Status status = staging_->Send(*in_); !status.ok() || bytes == 0) return status;
  staging_->AddCopied(bytes);
  return in_->CopyIn(target, request.inputs[input].views.front().data() + offset, bytes);
}

absl::Status DeviceLane::CopyOut(DeviceWave& wave, std::size_t index, std::size_t offset,
                                 std::size_t bytes) {
  DeviceRange range(device_, "copy_out");
  const DeviceWave::Item& item = wave.items[index];
  absl::Status status = out_->CopyOut(item.output.data() + offset,
                                      arena_.data() + item.result_offset + offset, bytes);
  if (status.ok()) wave.copied_out_bytes += bytes;
  return status;
}

absl::Status DeviceLane::Finish(DeviceWave& wave, absl::Span<const PieceMarks> marks,
                                absl::Status status) {
  for (DeviceWave::Item& item : wave.items) {
    if (!item.staged) item.request->ReleaseInputs();
  }
  // Every piece ends on that stream.
  if (status.ok()) status = out_->Wait();
  if (!status.ok()) static_cast<void>(Drain());
  if (status.ok()) {
    for (const PieceMarks& m : marks) {
      wave.times[Stage::kCopyIn] += in_->Between(m.copy_in.begin, m.copy_in.end);
      wave.times[Stage::kCompute] += compute_->Between(m.compute.begin, m.compute.end);
      wave.times[Stage::kCopyOut] += out_->Between(m.copy_out.begin, m.copy_out.end);
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
