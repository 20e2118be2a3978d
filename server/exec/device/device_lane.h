// A lane on one device.
//
// Large batches: the message slices are gathered into pinned staging, copied in, computed, and
// copied out into pinned response blocks. A batch that gains from it is cut into pieces of whole
// rows. Copies in, kernels and copies out have a stream each, so that those of different pieces
// overlap and no copy in waits behind a copy out; other lanes of the device overlap with them
// likewise.
//
// Small batches: the slices are gathered into the response blocks themselves, where the kernels may
// overwrite them, or into a chunk of staging, and the kernels read and write through the link, with
// no copies to enqueue and one wait.
//
// Tensors in pinned memory, or in the device's own, are read and written in place: requests with
// all tensors on the device are one launch, of any size. The response uses the block of a staged
// input if the kernels may overwrite the input.
//
// Errors end this batch with INTERNAL and retire the lane; when the device is no longer usable its
// other lanes retire at their next batch. Such an INTERNAL says that another attempt may succeed at
// once (base/retry_after.h): on another lane, or on another server.

#ifndef NORMD_SERVER_EXEC_DEVICE_DEVICE_LANE_H_
#define NORMD_SERVER_EXEC_DEVICE_DEVICE_LANE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "server/exec/device/device.h"
#include "server/exec/device/device_program.h"
#include "server/exec/device/device_wave.h"
#include "server/exec/device/pieces.h"
#include "server/exec/device/pinned_pool.h"
#include "server/exec/device/staging.h"
#include "server/exec/lane.h"
#include "server/metrics/metrics.h"

namespace normd {

struct DeviceLaneOptions {
  std::size_t device_index = 0;                     // See DeviceSite.
  int lane_index = 0;                               // Likewise.
  std::string name;                                 // Empty: the device's and the index.
  std::size_t arena_bytes = std::size_t{80} << 20;  // Device memory; bounds the bytes in flight.
  // A chunk of pinned staging; one gather, one copy in.
  std::size_t chunk_bytes = std::size_t{4} << 20;
  int chunks = 4;
  std::size_t piece_bytes = std::size_t{16} << 20;  // Target of a piece.
  bool overlap = true;  // Three streams; false: one, for lanes whose batches are small.
  std::size_t mapped_bytes = std::size_t{2} << 20;  // A batch up to this goes through the link.
};

class DeviceLane final : public Lane {
 public:
  // Allocates all its memory now. `device`, `pool`, `metrics` and `clock` outlive it.
  static absl::StatusOr<std::unique_ptr<DeviceLane>> Create(Device& device, PinnedPool& pool,
                                                            LaneMetrics& metrics,
                                                            const Clock& clock,
                                                            const DeviceLaneOptions& options);
  ~DeviceLane() override;

  const std::string& name() const override { return name_; }
  const std::string& device() const override { return device_.name(); }
  MemoryAccess access() const override { return access_; }
  absl::Status Execute(std::unique_ptr<Batch> batch) override;

 private:
  // The marks around the stages of one piece.
  struct Interval {
    DeviceStream::Mark begin = 0, end = 0;
  };
  struct PieceMarks {
    Interval copy_in, compute, copy_out;
  };

  DeviceLane(Device& device, PinnedPool& pool, LaneMetrics& metrics, const Clock& clock,
             const DeviceLaneOptions& options);

  absl::Status ExecuteLive(Batch& batch, const BatchInfo& info);
  void End(DeviceWave& wave, const absl::Status& status, const BatchInfo& info);
  // Moves requests from `next` on into the wave while the arena has room; returns the first
  // remaining one.
  std::size_t FillWave(Batch& batch, std::size_t next, DeviceWave& wave);
  // Gives every output memory; a request for which there is none fails.
  void TakeOutputs(const DeviceProgram& program, DeviceWave& wave);
  absl::Status TakeOutput(const DeviceProgram& program, DeviceWave::Item& item, std::size_t index);
  // A pinned block for the result; nullopt when none is free.
  std::optional<Buffer> TakeBlock(const DeviceProgram& program, Request& request,
                                  std::size_t index);
  // Returns a lent block to the pool, in exchange for a copy in ordinary memory if there is any.
  void ReturnLent(Request& request, DeviceWave::Output& output);
  absl::Status Run(const Batch& batch, DeviceWave& wave);
  bool IsMapped(const DeviceWave& wave) const;
  bool IsSmall(const Batch& batch) const {
    return static_cast<std::size_t>(batch.bytes) <= options_.mapped_bytes;
  }

  absl::Status RunMapped(const Batch& batch, DeviceWave& wave);
  // An input in memory that the device can read: in place, or gathered to its output's memory or to
  // `chunk`, which then advances.
  static const std::byte* MappedInput(const DeviceWave::Item& item, std::size_t index,
                                      std::byte*& chunk);
  // Runs the segments, on memory that both sides address.
  absl::Status ComputeMapped(const Batch& batch, absl::Span<const DeviceSegment> segments,
                             DeviceWave& wave);

  absl::Status RunPieces(const Batch& batch, DeviceWave& wave);
  absl::Status EnqueuePiece(const Batch& batch, DeviceWave& wave, const Piece& piece,
                            PieceMarks& marks);
  // The segment on the device, with the copies of its inputs enqueued.
  absl::Status CopySegmentIn(DeviceWave::Item& item, const PieceSegment& from, DeviceSegment& to);
  absl::Status CopyIn(DeviceWave::Input& input, std::size_t offset, std::byte* target,
                      std::size_t bytes);
  absl::Status CopySegmentOut(DeviceWave& wave, const PieceSegment& segment);
  absl::Status Launch(const Batch& batch, absl::Span<const DeviceSegment> segments);

  static absl::Status AddMark(DeviceStream& stream, DeviceStream::Mark& target);
  // Passes a piece to its next stage: `next` continues when `stream` has got there.
  static absl::Status Pass(DeviceStream& stream, DeviceStream::Mark& end, DeviceStream& next,
                           DeviceStream::Mark& begin);
  // Waits for all streams and takes the times between their marks, if `status` is OK.
  absl::Status Finish(DeviceWave& wave, absl::Span<const PieceMarks> marks, absl::Status status);
  // Waits for all streams, in any case, so that no memory is returned while in use.
  absl::Status Drain();

  Device& device_;
  PinnedPool& pool_;
  LaneMetrics& metrics_;
  const Clock& clock_;
  const DeviceLaneOptions options_;
  const std::string name_;
  const MemoryAccess access_;

  Buffer arena_;
  std::unique_ptr<Staging> staging_;
  // Destroyed first: their destructors wait for work that uses the memory above.
  std::vector<std::unique_ptr<DeviceStream>> streams_;
  DeviceStream* in_ = nullptr;  // One of `streams_`, as are these:
  DeviceStream* compute_ = nullptr;
  DeviceStream* out_ = nullptr;
};

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_DEVICE_DEVICE_LANE_H_
