#include "server/exec/device/staging.h"

#include <algorithm>
#include <cassert>

namespace normd {

absl::StatusOr<std::unique_ptr<Staging>> Staging::Create(Device& device, const Clock& clock,
                                                         std::size_t chunk_bytes, int chunks) {
  assert(chunks >= 1 && chunk_bytes >= 1);
  std::unique_ptr<Staging> staging(new Staging(device, clock, chunk_bytes));
  for (int i = 0; i < chunks; ++i) {
    absl::StatusOr<Buffer> memory = device.Allocate(MemoryKind::kPinned, chunk_bytes);
    if (!memory.ok()) return memory.status();
    staging->chunks_.emplace_back();
    staging->chunks_.back().memory = *std::move(memory);
  }
  staging->free_.reserve(staging->chunks_.size());
  staging->copying_.reserve(staging->chunks_.size());
  staging->Reset();
  return staging;
}

absl::Status Staging::Gather(SliceReader& source, std::byte* target, std::size_t bytes,
                             DeviceStream& stream) {
  while (bytes > 0) {
    if (open_.chunk != nullptr &&
        (target < open_.end || static_cast<std::size_t>(target - open_.begin) >= chunk_bytes_)) {
      if (absl::Status status = Send(stream); !status.ok()) return status;
    }
    if (open_.chunk == nullptr) {
      absl::StatusOr<Chunk*> chunk = NextChunk();
      if (!chunk.ok()) return chunk.status();
      open_ = {*chunk, target, target};
    }
    const auto position = static_cast<std::size_t>(target - open_.begin);
    const std::size_t part = std::min(bytes, chunk_bytes_ - position);
    const TimePoint begin = clock_.Now();
    {
      DeviceRange range(device_, "gather");
      source.Read(open_.chunk->memory.data() + position, part);
    }
    gather_time_ += clock_.Now() - begin;
    target += part;
    bytes -= part;
    open_.end = target;
  }
  return absl::OkStatus();
}

absl::Status Staging::Send(DeviceStream& stream) {
  if (open_.chunk == nullptr) return absl::OkStatus();
  DeviceRange range(device_, "copy_in");
  const OpenChunk sent = std::exchange(open_, OpenChunk());
  const auto bytes = static_cast<std::size_t>(sent.end - sent.begin);
  absl::Status status = stream.CopyIn(sent.begin, sent.chunk->memory.data(), bytes);
  if (!status.ok()) return status;
  copied_bytes_ += bytes;
  absl::StatusOr<DeviceStream::Point> copied = stream.AddPoint();
  if (!copied.ok()) return copied.status();
  sent.chunk->stream = &stream;
  sent.chunk->copied = *copied;
  copying_.push_back(sent.chunk);
  return absl::OkStatus();
}

absl::StatusOr<Staging::Chunk*> Staging::NextChunk() {
  while (!copying_.empty()) {
    Chunk& oldest = *copying_.front();
    if (!oldest.stream->IsReached(oldest.copied)) {
      if (!free_.empty()) break;
      absl::Status status = oldest.stream->WaitUntil(oldest.copied);
      if (!status.ok()) return status;
    }
    copying_.erase(copying_.begin());
    free_.push_back(&oldest);
  }
  Chunk* const chunk = free_.back();
  free_.pop_back();
  return chunk;
}

void Staging::Reset() {
  copying_.clear();
  free_.clear();
  for (auto chunk = chunks_.rbegin(); chunk != chunks_.rend(); ++chunk) free_.push_back(&*chunk);
  open_ = OpenChunk();
  gather_time_ = Duration(0);
  copied_bytes_ = 0;
}

}  // namespace normd
