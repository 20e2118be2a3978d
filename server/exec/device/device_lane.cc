#include "server/exec/device/device_lane.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <limits>
#include <new>
#include <optional>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "base/retry_after.h"
#include "server/exec/gather.h"
#include "server/exec/slice_reader.h"

namespace normd {
namespace {

// A result's memory when no pinned block is free: the copy out is slower, but no request waits for
// a client that does not read.
std::optional<Buffer> TakePageable(std::size_t bytes) {
  constexpr std::align_val_t kAlignment{DeviceWave::kAlignment};
  auto* data =
      static_cast<std::byte*>(::operator new(DeviceWave::RoundUp(bytes), kAlignment, std::nothrow));
  if (data == nullptr) return std::nullopt;
  return Buffer(data, bytes, [data] { ::operator delete(data, kAlignment); });
}

// Whether a tensor is to be read or written on a device.
bool NamesDevice(const Request& request) {
  const auto on_device = [](const auto& memory) { return !memory.place.OnHost(); };
  return std::any_of(request.inputs.begin(), request.inputs.end(), on_device) ||
         std::any_of(request.outputs.begin(), request.outputs.end(), on_device);
}

const DeviceProgram& ProgramOf(const Batch& batch) {
  assert(batch.model->backend_state() != nullptr && "the model was not prepared");
  return static_cast<const DeviceProgram&>(*batch.model->backend_state());
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
                                 : options.name),
      access_{false, true, device.ordinal()} {}

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
    status = absl::InternalError(absl::StrCat(name_, ": the device is no longer usable"));
    SetRetryAfter(Duration(0), status);
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
  if (!IsSmall(batch)) {
    std::stable_partition(batch.requests.begin(), batch.requests.end(),
                          [](const auto& request) { return NamesDevice(*request); });
  }
  while (next < batch.requests.size() && status.ok()) {
    DeviceWave wave;
    next = FillWave(batch, next, wave);
    status = Run(batch, wave);
    metrics_.AddCopied(static_cast<std::int64_t>(wave.copied_in_bytes),
                       static_cast<std::int64_t>(wave.copied_out_bytes));
    if (!status.ok()) {
      status = absl::Status(status.code(), absl::StrCat(name_, ": ", status.message()));
    }
    // Any other error is the batch's own: it was refused, and the device is unchanged.
    const bool device_failed = absl::IsInternal(status) || !device_.usable();
    if (device_failed) SetRetryAfter(Duration(0), status);
    End(wave, status, info);
    if (!device_failed) status = absl::OkStatus();
  }
  for (; next < batch.requests.size(); ++next) Fail(std::move(batch.requests[next]), status);
  return status;
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
    OutputBuffers outputs;
    for (DeviceWave::Output& output : item.outputs) {
      if (output.lent) ReturnLent(*item.request, output);
      outputs.push_back(std::move(output.block));
    }
    Complete(std::move(item.request), std::move(outputs), info);
  }
}

std::size_t DeviceLane::FillWave(Batch& batch, std::size_t next, DeviceWave& wave) {
  for (; next < batch.requests.size(); ++next) {
    std::unique_ptr<Request>& request = batch.requests[next];
    DeviceWave::Item item(std::move(request), ProgramOf(batch).overwrites(), access_);
    if (item.arena_bytes > arena_.size()) {
      absl::Status status = absl::ResourceExhaustedError(absl::StrCat(
          "tensor: ", item.tensor_bytes, " bytes, the lane's device memory holds ", arena_.size()));
      Fail(std::move(item.request), std::move(status));
      continue;
    }
    // Tensors on the device are one launch: it waits for no copies and is not cut into pieces.
    const bool is_alone = !wave.items.empty() && !IsSmall(batch) &&
                          wave.items.front().all_on_device != item.all_on_device;
    if (is_alone || wave.arena_bytes + item.arena_bytes > arena_.size()) {
      request = std::move(item.request);
      break;
    }
    wave.Add(std::move(item));
  }
  return next;
}

void DeviceLane::TakeOutputs(const DeviceProgram& program, DeviceWave& wave) {
  for (DeviceWave::Item& item : wave.items) {
    absl::Status status;
    for (std::size_t i = 0; i < item.outputs.size() && status.ok(); ++i) {
      status = TakeOutput(program, item, i);
    }
    if (!status.ok()) Fail(std::move(item.request), std::move(status));
  }
  std::erase_if(wave.items, [](const DeviceWave::Item& item) { return item.request == nullptr; });
}

absl::Status DeviceLane::TakeOutput(const DeviceProgram& program, DeviceWave::Item& item,
                                    std::size_t index) {
  DeviceWave::Output& output = item.outputs[index];
  if (!output.memory.empty()) return absl::OkStatus();
  if (output.bytes == 0) {
    output.addressable = true;
    return absl::OkStatus();
  }
  std::optional<Buffer> block = TakeBlock(program, *item.request, index);
  output.addressable = block.has_value();
  output.lent = output.addressable && pool_.IsScarce();
  if (!block) block = TakePageable(output.bytes);
  if (!block) {
    return absl::ResourceExhaustedError(
        absl::StrCat("output: no memory for ", output.bytes, " bytes"));
  }
  output.block = *std::move(block);
  output.memory = MutableBytes(output.block.data(), output.bytes);
  return absl::OkStatus();
}

// If the kernels may overwrite a staged input, the device writes where the receiving thread wrote,
// and half as much memory passes through the caches.
std::optional<Buffer> DeviceLane::TakeBlock(const DeviceProgram& program, Request& request,
                                            std::size_t index) {
  const bool overwrites = request.inputs.size() == 1 && program.overwrites()[index] == 0;
  if (request.IsStaged() && overwrites) return std::move(request.staged);
  return pool_.Take(static_cast<std::size_t>(request.geometry.outputs[index].bytes));
}

void DeviceLane::ReturnLent(Request& request, DeviceWave::Output& output) {
  const TimePoint begin = clock_.Now();
  std::optional<Buffer> copy = TakePageable(output.bytes);
  if (!copy) return;
  std::memcpy(copy->data(), output.memory.data(), output.bytes);
  output.block = *std::move(copy);
  request.stages[Stage::kCopyOut] += clock_.Now() - begin;
}

absl::Status DeviceLane::Run(const Batch& batch, DeviceWave& wave) {
  TakeOutputs(ProgramOf(batch), wave);
  const bool mapped = IsMapped(wave);
  if (!mapped || wave.request_bytes > options_.mapped_bytes) LargeBatch();
  return mapped ? RunMapped(batch, wave) : RunPieces(batch, wave);
}

// Whether the batch is small, and the kernels can address every tensor: the host gathers inputs
// into memory that it can write itself, a chunk or the output that overwrites them.
bool DeviceLane::IsMapped(const DeviceWave& wave) const {
  if (wave.link_bytes > options_.mapped_bytes || wave.front_bytes > staging_->chunk_bytes()) {
    return false;
  }
  for (const DeviceWave::Item& item : wave.items) {
    for (const DeviceWave::Output& output : item.outputs) {
      if (!output.addressable) return false;
    }
  }
  return true;
}

absl::Status DeviceLane::RunMapped(const Batch& batch, DeviceWave& wave) {
  const TimePoint begin = clock_.Now();
  absl::InlinedVector<DeviceSegment, 16> segments;
  {
    DeviceRange range(device_, "gather");
    std::byte* chunk = staging_->idle_chunk();
    for (DeviceWave::Item& item : wave.items) {
      Request& request = *item.request;
      DeviceSegment& segment = segments.emplace_back();
      for (DeviceWave::Output& output : item.outputs) {
        segment.outputs.push_back(output.bytes == 0 ? nullptr : output.memory.data());
      }
      for (std::size_t i = 0; i < item.inputs.size(); ++i) {
        segment.inputs.push_back(MappedInput(item, i, chunk));
        segment.input_bytes.push_back(request.geometry.inputs[i].bytes);
      }
      const Geometry& geometry = request.geometry;
      segment.samples = geometry.samples;
      segment.spatial = geometry.spatial;
      segment.spatial_runs = geometry.spatial_runs;
      segment.channels = geometry.channels;
      segment.options = request.options;
      if (!item.reads_there) request.ReleaseInputs();
    }
  }
  wave.times[Stage::kGather] = clock_.Now() - begin;
  return ComputeMapped(batch, segments, wave);
}

const std::byte* DeviceLane::MappedInput(const DeviceWave::Item& item, std::size_t index,
                                         std::byte*& chunk) {
  const DeviceWave::Input& input = item.inputs[index];
  if (input.there != nullptr) return input.there;
  std::byte* to = chunk;
  if (item.IsOverwritten(input)) {
    to = item.outputs[static_cast<std::size_t>(input.overwritten_by)].memory.data();
  } else {
    chunk += DeviceWave::RoundUp(input.bytes);
  }
  GatherInput(*item.request, index, to);
  return to;
}

absl::Status DeviceLane::ComputeMapped(const Batch& batch, absl::Span<const DeviceSegment> segments,
                                       DeviceWave& wave) {
  DeviceRange range(device_, "compute");
  const TimePoint begin = clock_.Now();
  absl::Status status = Launch(batch, segments);
  if (status.ok()) status = compute_->Wait();
  if (!status.ok()) {
    static_cast<void>(Drain());
    return status;
  }
  // Marks around the kernels would cost more than they would leave out.
  wave.times[Stage::kCompute] = clock_.Now() - begin;
  // The kernels read and write each byte once, over the link unless it is on the device.
  for (const DeviceWave::Item& item : wave.items) {
    for (const DeviceWave::Input& input : item.inputs) {
      if (!input.on_device) wave.copied_in_bytes += input.bytes;
    }
    for (const DeviceWave::Output& output : item.outputs) {
      if (!output.on_device) wave.copied_out_bytes += output.bytes;
    }
  }
  return status;
}

absl::Status DeviceLane::RunPieces(const Batch& batch, DeviceWave& wave) {
  std::vector<Geometry> geometries;
  geometries.reserve(wave.items.size());
  for (const DeviceWave::Item& item : wave.items) geometries.push_back(item.request->geometry);
  const std::vector<Piece> pieces =
      ProgramOf(batch).gains_from_pieces()
          ? CutIntoPieces(batch.model->cut(), geometries,
                          static_cast<std::int64_t>(options_.piece_bytes))
          : CutIntoPieces(CutRule(), geometries, std::numeric_limits<std::int64_t>::max());
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
  absl::InlinedVector<DeviceSegment, 16> segments;
  for (const PieceSegment& segment : piece.segments) {
    if (!status.ok()) return status;
    DeviceSegment& to = segments.emplace_back();
    to.channels = piece.channels;
    status = CopySegmentIn(wave.items[segment.request], segment, to);
  }
  if (status.ok()) status = staging_->Send(*in_);
  if (status.ok()) status = Pass(*in_, marks.copy_in.end, *compute_, marks.compute.begin);
  if (!status.ok()) return status;
  {
    DeviceRange range(device_, "compute");
    status = Launch(batch, segments);
  }
  if (status.ok()) status = Pass(*compute_, marks.compute.end, *out_, marks.copy_out.begin);
  for (const PieceSegment& segment : piece.segments) {
    if (!status.ok()) return status;
    status = CopySegmentOut(wave, segment);
  }
  return status.ok() ? AddMark(*out_, marks.copy_out.end) : status;
}

absl::Status DeviceLane::CopySegmentIn(DeviceWave::Item& item, const PieceSegment& from,
                                       DeviceSegment& to) {
  to.samples = from.samples;
  to.spatial = from.spatial;
  to.spatial_runs = from.spatial_runs;
  to.options = item.request->options;
  for (const DeviceWave::Output& output : item.outputs) {
    std::byte* const base = output.on_device ? output.memory.data() : arena_.data() + output.offset;
    to.outputs.push_back(output.bytes == 0 ? nullptr : base + from.OffsetIn(output.bytes));
  }
  for (DeviceWave::Input& input : item.inputs) {
    const std::size_t offset = from.OffsetIn(input.bytes);
    to.input_bytes.push_back(static_cast<std::int64_t>(from.BytesOf(input.bytes)));
    if (input.on_device) {
      to.inputs.push_back(input.there + offset);
      continue;
    }
    std::byte* const target = arena_.data() + input.offset + offset;
    to.inputs.push_back(target);
    absl::Status status = CopyIn(input, offset, target, from.BytesOf(input.bytes));
    // Between the parts of several tensors lie other parts of them, already in work.
    if (status.ok() && item.places > 1 && from.count < from.units) status = staging_->Send(*in_);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status DeviceLane::CopyIn(DeviceWave::Input& input, std::size_t offset, std::byte* target,
                                std::size_t bytes) {
  if (input.there == nullptr) return staging_->Gather(input.reader, target, bytes, *in_);
  DeviceRange range(device_, "copy_in");
  if (absl::Status status = staging_->Send(*in_); !status.ok() || bytes == 0) return status;
  staging_->AddCopied(bytes);
  return in_->CopyIn(target, input.there + offset, bytes);
}

absl::Status DeviceLane::CopySegmentOut(DeviceWave& wave, const PieceSegment& segment) {
  DeviceRange range(device_, "copy_out");
  for (DeviceWave::Output& output : wave.items[segment.request].outputs) {
    if (output.on_device || output.bytes == 0) continue;
    const std::size_t offset = segment.OffsetIn(output.bytes);
    const std::size_t bytes = segment.BytesOf(output.bytes);
    absl::Status status =
        out_->CopyOut(output.memory.data() + offset, arena_.data() + output.offset + offset, bytes);
    if (!status.ok()) return status;
    wave.copied_out_bytes += bytes;
  }
  return absl::OkStatus();
}

absl::Status DeviceLane::Launch(const Batch& batch, absl::Span<const DeviceSegment> segments) {
  const DeviceSite site = {*compute_, options_.device_index, options_.lane_index};
  return ProgramOf(batch).Launch(site, batch.dtype, segments);
}

absl::Status DeviceLane::Finish(DeviceWave& wave, absl::Span<const PieceMarks> marks,
                                absl::Status status) {
  for (DeviceWave::Item& item : wave.items) {
    if (!item.reads_there) item.request->ReleaseInputs();
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
