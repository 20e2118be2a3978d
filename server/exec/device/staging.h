// Pinned memory that carries the slices of requests to a device.

#ifndef NORMD_SERVER_EXEC_DEVICE_STAGING_H_
#define NORMD_SERVER_EXEC_DEVICE_STAGING_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "server/exec/device/device.h"
#include "server/exec/slice_reader.h"

namespace normd {

// Some chunks: the host fills one while others are copied. There are no more than the copies need,
// so that the next one to fill is likely in the caches. Tensors that are close together on the
// device share a chunk, and so one copy; the gaps between are copied too, so a device write into a
// gap must not overtake a copy. Used by one thread.
class Staging {
 public:
  // Takes `chunks` times `chunk_bytes` of pinned memory from `device`, which outlives it, as
  // `clock` does.
  static absl::StatusOr<std::unique_ptr<Staging>> Create(Device& device, const Clock& clock,
                                                         std::size_t chunk_bytes, int chunks);

  // Copies the next `bytes` of `source` into chunks, and enqueues on `stream` the copy of each full
  // one to `target` in device memory. May wait for a chunk. Until Send, the next call has the same
  // stream and a `target` after this one's bytes.
  absl::Status Gather(SliceReader& source, std::byte* target, std::size_t bytes,
                      DeviceStream& stream);
  // Enqueues the copy of the chunk that is not full yet.
  absl::Status Send(DeviceStream& stream);

  // A chunk's memory, for use while no copy is in progress.
  std::byte* idle_chunk() { return chunks_.front().memory.data(); }
  std::size_t chunk_bytes() const { return chunk_bytes_; }

  // Since the last Reset.
  Duration gather_time() const { return gather_time_; }
  std::size_t copied_bytes() const { return copied_bytes_; }
  // Counts bytes copied without the chunks.
  void AddCopied(std::size_t bytes) { copied_bytes_ += bytes; }
  // Call when every stream is drained. Needs no memory.
  void Reset();

 private:
  // The memory, and the point of `stream` at which its last copy is done.
  struct Chunk {
    Buffer memory;
    DeviceStream* stream = nullptr;
    DeviceStream::Point copied = 0;
  };
  // The chunk being filled, for [begin, end) on the device.
  struct OpenChunk {
    Chunk* chunk = nullptr;
    std::byte* begin = nullptr;
    std::byte* end = nullptr;
  };

  Staging(Device& device, const Clock& clock, std::size_t chunk_bytes)
      : device_(device), clock_(clock), chunk_bytes_(chunk_bytes) {}
  // The chunk whose copy finished last, or a fresh one, or the oldest, after waiting.
  absl::StatusOr<Chunk*> NextChunk();

  Device& device_;
  const Clock& clock_;
  const std::size_t chunk_bytes_;
  std::vector<Chunk> chunks_;
  // Both have room for all chunks, so that a batch that found no memory can be undone.
  std::vector<Chunk*> free_;     // The last that became free at the end.
  std::vector<Chunk*> copying_;  // The oldest in front.
  OpenChunk open_;
  Duration gather_time_{};
  std::size_t copied_bytes_ = 0;
};

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_DEVICE_STAGING_H_
