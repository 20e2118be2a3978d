// A lane on one device.
//
// Large batches: the message slices are gathered into pinned staging, copied in, computed in place,
// and copied out into pinned response blocks. The batch is cut into pieces of whole rows that go
// round the lane's streams, so that the copy in, the kernel and the copy out of different pieces
// overlap; other lanes of the device overlap with them likewise.
//
// Small batches: the slices are gathered into the response block itself, and the kernel normalizes
// it in place through the link, with no copies to enqueue and one launch to wait for.
//
// Errors: what goes wrong ends this batch with INTERNAL and retires the lane; when the device is no
// longer usable its other lanes retire at their next batch.

#ifndef NORMD_SERVER_EXEC_DEVICE_DEVICE_LANE_H_
#define NORMD_SERVER_EXEC_DEVICE_DEVICE_LANE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/base/clock.h"
#include "server/exec/device/device.h"
#include "server/exec/device/pieces.h"
#include "server/exec/device/pinned_pool.h"
#include "server/exec/lane.h"
#include "server/metrics/metrics.h"

namespace normd {

struct DeviceLaneOptions {
  std::size_t device_index = 0;  // Into the devices of DeviceModel.
  int lane_index = 0;
  std::size_t arena_bytes = std::size_t{80} << 20;  // Device memory; bounds what is in flight.
  std::size_t chunk_bytes = std::size_t{2} << 20;   // Of pinned staging; one gather, one copy in.
  int chunks = 4;
  std::size_t piece_bytes = std::size_t{8} << 20;  // Target of a piece.
  int streams = 3;
  std::size_t mapped_bytes = std::size_t{256} << 10;  // A batch up to this goes through the link.
};

class DeviceLane final : public Lane {
 public:
  // Takes all its memory now. `device`, `pool`, `metrics` and `clock` outlive it.
  static absl::StatusOr<std::unique_ptr<DeviceLane>> Create(Device& device, PinnedPool& pool,
                                                            LaneMetrics& metrics,
                                                            const Clock& clock,
                                                            const DeviceLaneOptions& options);
  ~DeviceLane() override;

  const std::string& name() const override { return name_; }
  const std::string& device() const override { return device_.name(); }
  absl::Status Execute(std::unique_ptr<Batch> batch) override;

 private:
  // A chunk of pinned staging, and the point at which its copy in is done.
  struct Chunk {
    Buffer memory;
    DeviceStream* stream = nullptr;  // Null: free.
    DeviceStream::Mark copied = 0;
  };
  // The chunk being filled, for [begin, end) of the arena.
  struct OpenChunk {
    Chunk* chunk = nullptr;
    std::size_t begin = 0;
    std::size_t end = 0;
  };
  // The marks around the stages of one piece.
  struct PieceMarks {
    DeviceStream* stream = nullptr;
    DeviceStream::Mark begin = 0, copied_in = 0, computed = 0, copied_out = 0;
  };
  class Wave;  // Requests that are in the arena together.

  DeviceLane(Device& device, PinnedPool& pool, LaneMetrics& metrics, const Clock& clock,
             const DeviceLaneOptions& options);

  absl::Status ExecuteLive(Batch& batch, const BatchInfo& info);
  // Moves requests from `next` on into the wave while the arena has room; returns the first left.
  std::size_t FillWave(Batch& batch, std::size_t next, Wave& wave);
  // True when every output is a pinned block.
  bool TakeOutputs(Wave& wave);
  absl::Status RunMapped(Wave& wave);
  absl::Status RunPieces(Wave& wave);
  absl::Status EnqueuePiece(Wave& wave, const Piece& piece, DeviceStream& stream,
                            PieceMarks& marks);
  // Gathers the segment into staging and sends each chunk that is full.
  absl::Status CopyIn(Wave& wave, const PieceSegment& segment, DeviceStream& stream);
  absl::Status SendChunk(Wave& wave, DeviceStream& stream);
  // A free chunk of staging, after waiting for its last copy if need be.
  absl::StatusOr<Chunk*> NextChunk();
  // Waits for all streams, whatever happens, so that no memory is given back in use.
  absl::Status Drain();

  Device& device_;
  PinnedPool& pool_;
  LaneMetrics& metrics_;
  const Clock& clock_;
  const DeviceLaneOptions options_;
  const std::string name_;

  Buffer arena_;
  std::vector<Chunk> chunks_;
  std::size_t next_chunk_ = 0;
  OpenChunk open_;
  // Destroyed first: their destructors wait for work that uses the memory above.
  std::vector<std::unique_ptr<DeviceStream>> streams_;
};

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_DEVICE_DEVICE_LANE_H_
