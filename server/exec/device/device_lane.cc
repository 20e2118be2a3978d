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

constexpr std::size_t kAlignment = 256;

std::size_t RoundUp(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Where a request's result goes when no pinned block is free: the copy out is slower, but no
// request waits for a client that does not read.
std::optional<Buffer> TakePageable(std::size_t bytes) {
  auto* data = static_cast<std::byte*>(
      ::operator new (RoundUp(bytes), std::align_val_t{kAlignment}, std::nothrow));
  if (data == nullptr) return std::nullopt;
  return Buffer(data, bytes, [data] { ::operator delete (data, std::align_val_t{kAlignment}); });
}

}  // namespace

class DeviceLane::Wave {
 public:
  struct Item {
    explicit Item(std::unique_ptr<Request> r)
        : request(std::move(r)), reader(absl::MakeConstSpan(request->inputs.front())) {}

    std::unique_ptr<Request> request;
    SliceReader reader;
    Buffer block;         // Owns the output, unless the request names its memory.
    MutableBytes output;  // Of the request's size.
    std::size_t arena_offset = 0;
  };

  Wave(const Batch& batch, std::size_t device_index)
      : spec(batch.model->Spec(batch.dtype)),
        params(
            static_cast<const DeviceModel&>(*batch.model->backend_state()).params(device_index)) {}

  void Add(std::unique_ptr<Request> request) {
    const std::size_t bytes = static_cast<std::size_t>(request->geometry.bytes);
    items.emplace_back(std::move(request));
    items.back().arena_offset = arena_bytes;
    arena_bytes += RoundUp(bytes);
    tensor_bytes += bytes;
  }

  norm::NormSpec spec;
  const norm::NormParams& params;
  std::vector<Item> items;
  std::size_t arena_bytes = 0;
  std::size_t tensor_bytes = 0;
  std::size_t copied_in_bytes = 0;
  std::size_t copied_out_bytes = 0;
  StageTimes times;
};

DeviceLane::DeviceLane(Device& device, PinnedPool& pool, LaneMetrics& metrics, const Clock& clock,
                       const DeviceLaneOptions& options)
    : device_(device),
      pool_(pool),
      metrics_(metrics),
      clock_(clock),
      options_(options),
      name_(absl::StrCat(device.name(), "/", options.lane_index)) {}

DeviceLane::~DeviceLane() = default;

absl::StatusOr<std::unique_ptr<DeviceLane>> DeviceLane::Create(Device& device, PinnedPool& pool,
                                                               LaneMetrics& metrics,
                                                               const Clock& clock,
                                                               const DeviceLaneOptions& options) {
  assert(options.chunks >= 1 && options.streams >= 1);
  std::unique_ptr<DeviceLane> lane(new DeviceLane(device, pool, metrics, clock, options));
  absl::StatusOr<Buffer> arena = device.Allocate(MemoryKind::kDevice, options.arena_bytes);
  if (!arena.ok()) return arena.status();
  lane->arena_ = *std::move(arena);
  for (int i = 0; i < options.chunks; ++i) {
    absl::StatusOr<Buffer> memory = device.Allocate(MemoryKind::kPinned, options.chunk_bytes);
    if (!memory.ok()) return memory.status();
    lane->chunks_.emplace_back();
    lane->chunks_.back().memory = *std::move(memory);
  }
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
    Wave wave(batch, options_.device_index);
    next = FillWave(batch, next, wave);
    const bool mapped = TakeOutputs(wave) && wave.tensor_bytes <= options_.mapped_bytes;
    status = mapped ? RunMapped(wave) : RunPieces(wave);
    metrics_.AddCopied(static_cast<std::int64_t>(wave.copied_in_bytes),
                       static_cast<std::int64_t>(wave.copied_out_bytes));
    if (!status.ok()) {
      status = absl::Status(status.code(), absl::StrCat(name_, ": ", status.message()));
    }
    for (Wave::Item& item : wave.items) {
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

std::size_t DeviceLane::FillWave(Batch& batch, std::size_t next, Wave& wave) {
  for (; next < batch.requests.size(); ++next) {
    std::unique_ptr<Request>& request = batch.requests[next];
    const std::size_t bytes = RoundUp(static_cast<std::size_t>(request->geometry.bytes));
    if (bytes > arena_.size()) {
      absl::Status status = absl::ResourceExhaustedError(
          absl::StrCat("tensor: ", request->geometry.bytes,
                       " bytes, the lane's device memory holds ", arena_.size()));
      Fail(std::move(request), std::move(status));
      continue;
    }
    if (wave.arena_bytes + bytes > arena_.size()) break;
    wave.Add(std::move(request));
  }
  return next;
}

bool DeviceLane::TakeOutputs(Wave& wave) {
  bool all_pinned = true;
  for (Wave::Item& item : wave.items) {
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
  std::erase_if(wave.items, [](const Wave::Item& item) { return item.request == nullptr; });
  return all_pinned;
}

absl::Status DeviceLane::RunMapped(Wave& wave) {
  const TimePoint begin = clock_.Now();
  absl::InlinedVector<norm::Segment, 16> segments;
  {
    DeviceRange range(device_, "gather");
    for (Wave::Item& item : wave.items) {
      GatherInput(*item.request, 0, item.output.data());
      item.request->ReleaseInputs();
      const Geometry& geometry = item.request->geometry;
      segments.push_back(
          {item.output.data(), item.output.data(), geometry.samples, geometry.spatial});
    }
  }
  wave.times[Stage::kGather] = clock_.Now() - begin;
  DeviceRange range(device_, "compute");
  DeviceStream& stream = *streams_.front();
  absl::StatusOr<DeviceStream::Mark> first = stream.AddMark();
  absl::Status status = first.status();
  // One launch for each run of requests that cover the same channels.
  for (std::size_t at = 0; status.ok() && at < segments.size();) {
    const ChannelRange channels = wave.items[at].request->geometry.channels;
    std::size_t end = at + 1;
    while (end < segments.size() && wave.items[end].request->geometry.channels == channels) ++end;
    status = stream.Normalize(SpecOf(wave.spec, channels), ParamsOf(wave.params, channels),
                              segments.data() + at, end - at);
    at = end;
  }
  absl::StatusOr<DeviceStream::Mark> last = stream.AddMark();
  if (status.ok()) status = last.ok() ? stream.WaitFor(*last) : last.status();
  if (status.ok()) {
    wave.times[Stage::kCompute] = stream.Between(*first, *last);
    // The kernel reads and writes each byte once, over the link.
    wave.copied_in_bytes = wave.tensor_bytes;
    wave.copied_out_bytes = wave.tensor_bytes;
  } else {
    static_cast<void>(Drain());
  }
  stream.ClearMarks();
  return status;
}

absl::Status DeviceLane::RunPieces(Wave& wave) {
  std::vector<Geometry> geometries;
  geometries.reserve(wave.items.size());
  for (const Wave::Item& item : wave.items) geometries.push_back(item.request->geometry);
  const std::vector<Piece> pieces =
      CutIntoPieces(wave.spec, geometries, static_cast<std::int64_t>(options_.piece_bytes));
  std::vector<PieceMarks> marks(pieces.size());
  absl::Status status;
  for (std::size_t i = 0; i < pieces.size() && status.ok(); ++i) {
    status = EnqueuePiece(wave, pieces[i], *streams_[i % streams_.size()], marks[i]);
  }
  for (Wave::Item& item : wave.items) item.request->ReleaseInputs();
  if (absl::Status drained = Drain(); status.ok()) status = drained;
  if (status.ok()) {
    for (const PieceMarks& m : marks) {
      wave.times[Stage::kCopyIn] += m.stream->Between(m.begin, m.copied_in);
      wave.times[Stage::kCompute] += m.stream->Between(m.copied_in, m.computed);
      wave.times[Stage::kCopyOut] += m.stream->Between(m.computed, m.copied_out);
    }
  }
  for (const auto& stream : streams_) stream->ClearMarks();
  for (Chunk& chunk : chunks_) chunk.stream = nullptr;
  open_ = OpenChunk();
  return status;
}

absl::Status DeviceLane::EnqueuePiece(Wave& wave, const Piece& piece, DeviceStream& stream,
                                      PieceMarks& marks) {
  const auto mark = [&stream](DeviceStream::Mark& target) {
    absl::StatusOr<DeviceStream::Mark> added = stream.AddMark();
    if (added.ok()) target = *added;
    return added.status();
  };
  marks.stream = &stream;
  if (absl::Status status = mark(marks.begin); !status.ok()) return status;
  absl::InlinedVector<norm::Segment, 16> segments;
  for (const PieceSegment& segment : piece.segments) {
    if (absl::Status status = CopyIn(wave, segment, stream); !status.ok()) return status;
    std::byte* rows =
        arena_.data() + wave.items[segment.request].arena_offset + segment.request_offset;
    segments.push_back({rows, rows, segment.samples, segment.spatial});
  }
  if (absl::Status status = SendChunk(wave, stream); !status.ok()) return status;
  if (absl::Status status = mark(marks.copied_in); !status.ok()) return status;
  {
    DeviceRange range(device_, "compute");
    absl::Status status =
        stream.Normalize(SpecOf(wave.spec, piece.channels), ParamsOf(wave.params, piece.channels),
                         segments.data(), segments.size());
    if (!status.ok()) return status;
  }
  if (absl::Status status = mark(marks.computed); !status.ok()) return status;
  DeviceRange range(device_, "copy_out");
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const PieceSegment& segment = piece.segments[i];
    std::byte* target = wave.items[segment.request].output.data() + segment.request_offset;
    absl::Status status = stream.CopyOut(target, static_cast<const std::byte*>(segments[i].y),
                                         static_cast<std::size_t>(segment.bytes));
    if (!status.ok()) return status;
    wave.copied_out_bytes += static_cast<std::size_t>(segment.bytes);
  }
  return mark(marks.copied_out);
}

absl::Status DeviceLane::CopyIn(Wave& wave, const PieceSegment& segment, DeviceStream& stream) {
  Wave::Item& item = wave.items[segment.request];
  std::size_t offset = item.arena_offset + static_cast<std::size_t>(segment.request_offset);
  for (std::size_t left = static_cast<std::size_t>(segment.bytes); left > 0;) {
    // Neighbours in the arena share a chunk, and so one copy; the gaps between them travel along.
    if (open_.chunk != nullptr &&
        (offset < open_.end || offset - open_.begin >= options_.chunk_bytes)) {
      if (absl::Status status = SendChunk(wave, stream); !status.ok()) return status;
    }
    if (open_.chunk == nullptr) {
      absl::StatusOr<Chunk*> chunk = NextChunk();
      if (!chunk.ok()) return chunk.status();
      open_ = {*chunk, offset, offset};
    }
    const std::size_t position = offset - open_.begin;
    const std::size_t part = std::min(left, options_.chunk_bytes - position);
    const TimePoint begin = clock_.Now();
    {
      DeviceRange range(device_, "gather");
      item.reader.Read(open_.chunk->memory.data() + position, part);
    }
    wave.times[Stage::kGather] += clock_.Now() - begin;
    offset += part;
    left -= part;
    open_.end = offset;
  }
  return absl::OkStatus();
}

absl::Status DeviceLane::SendChunk(Wave& wave, DeviceStream& stream) {
  if (open_.chunk == nullptr) return absl::OkStatus();
  DeviceRange range(device_, "copy_in");
  const OpenChunk sent = std::exchange(open_, OpenChunk());
  absl::Status status =
      stream.CopyIn(arena_.data() + sent.begin, sent.chunk->memory.data(), sent.end - sent.begin);
  if (!status.ok()) return status;
  wave.copied_in_bytes += sent.end - sent.begin;
  absl::StatusOr<DeviceStream::Mark> copied = stream.AddMark();
  if (!copied.ok()) return copied.status();
  sent.chunk->stream = &stream;
  sent.chunk->copied = *copied;
  return absl::OkStatus();
}

absl::StatusOr<DeviceLane::Chunk*> DeviceLane::NextChunk() {
  Chunk& chunk = chunks_[next_chunk_];
  next_chunk_ = (next_chunk_ + 1) % chunks_.size();
  if (chunk.stream != nullptr) {
    if (absl::Status status = chunk.stream->WaitFor(chunk.copied); !status.ok()) return status;
    chunk.stream = nullptr;
  }
  return &chunk;
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
