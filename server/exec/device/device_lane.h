// A lane on one device.
//
// Large batches: the message slices are gathered into pinned staging, copied in, computed in place,
// and copied out into pinned response blocks. The batch is cut into pieces of whole rows. Copies
// in, kernels and copies out have a stream each, so that those of different pieces overlap and no
// copy in waits behind a copy out; other lanes of the device overlap with them likewise.
//
// Small batches: the slices are gathered into the response block itself, and the kernel reads and
// writes through the link, with no copies to enqueue and one launch to wait for.
//
// A staged input of a norm, in either kind of batch, is overwritten with the result, and its block
// is the response's.
//
// A fused layer's batch is one piece, whatever its size, with one launch for each precision that
// its requests ask for.
//
// Errors: what goes wrong ends this batch with INTERNAL and retires the lane; when the device is no
// longer usable its other lanes retire at their next batch.

#ifndef NORMD_SERVER_EXEC_DEVICE_DEVICE_LANE_H_
#define NORMD_SERVER_EXEC_DEVICE_DEVICE_LANE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "server/exec/device/device.h"
#include "server/exec/device/device_wave.h"
#include "server/exec/device/pieces.h"
#include "server/exec/device/pinned_pool.h"
#include "server/exec/device/staging.h"
#include "server/exec/lane.h"
#include "server/metrics/metrics.h"

namespace normd {

struct DeviceLaneOptions {
  std::size_t device_index = 0;                     // Into the devices of DeviceModel.
  int lane_index = 0;                               // Its workspace in DeviceLinearModel.
  std::string name;                                 // Empty: the device's and the index.
  std::size_t arena_bytes = std::size_t{80} << 20;  // Device memory; bounds what is in flight.
  std::size_t chunk_bytes = std::size_t{4} << 20;   // Of pinned staging; one gather, one copy in.
  int chunks = 4;
  std::size_t piece_bytes = std::size_t{16} << 20;  // Target of a piece.
  bool overlap = true;  // Three streams; false: one, for lanes whose batches are small.
  std::size_t mapped_bytes = std::size_t{2} << 20;  // A batch up to this goes through the link.
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
  // Moves requests from `next` on into the wave while the arena has room; returns the first left.
  std::size_t FillWave(Batch& batch, std::size_t next, DeviceWave& wave);
  // True when every output is a pinned block.
  bool TakeOutputs(DeviceWave& wave);
  // A pinned block for the result; nullopt when none is free.
  std::optional<Buffer> TakeBlock(DeviceWave::Item& item);
  // Gives a lent block back to the pool, for a copy in ordinary memory if there is any.
  void ReturnLent(DeviceWave::Item& item);
  absl::Status Run(const Batch& batch, DeviceWave& wave);

  absl::Status RunMapped(const Batch& batch, DeviceWave& wave);
  absl::Status RunPieces(const Batch& batch, DeviceWave& wave);
  absl::Status EnqueuePiece(const Batch& batch, DeviceWave& wave, const Piece& piece,
                            PieceMarks& marks);

  // The input where the device can read it: as it was staged, or gathered to `to`.
  static const std::byte* MappedInput(const DeviceWave::Item& item, std::size_t input,
                                      std::byte* to);

  absl::Status RunLinearMapped(const Batch& batch, DeviceWave& wave);
  absl::Status RunLinear(const Batch& batch, DeviceWave& wave);
  absl::Status EnqueueLinear(const Batch& batch, DeviceWave& wave, PieceMarks& marks);
  // One launch for each precision; segments[i] belongs to wave.items[i].
  absl::Status LaunchLinear(const Batch& batch, const DeviceWave& wave,
                            absl::Span<const norm::LinearNormSegment> segments);

  // Runs what `launch` enqueues for computing, on memory that both sides address.
  absl::Status ComputeMapped(DeviceWave& wave, absl::FunctionRef<absl::Status()> launch);
  // From the staged input or, by way of `staging_`, from the slices.
  absl::Status CopyIn(DeviceWave::Item& item, std::size_t input, std::size_t offset,
                      std::byte* target, std::size_t bytes);
  absl::Status CopyOut(DeviceWave& wave, std::size_t item, std::size_t offset, std::size_t bytes);
  static absl::Status AddMark(DeviceStream& stream, DeviceStream::Mark& target);
  // The next stage of a piece: `next` goes on from there when `stream` has come so far.
  static absl::Status Pass(DeviceStream& stream, DeviceStream::Mark& end, DeviceStream& next,
                           DeviceStream::Mark& begin);
  // Waits for all streams and takes the times between their marks, if `status` is OK.
  absl::Status Finish(DeviceWave& wave, absl::Span<const PieceMarks> marks, absl::Status status);
  // Waits for all streams, whatever happens, so that no memory is given back in use.
  absl::Status Drain();

  Device& device_;
  PinnedPool& pool_;
  LaneMetrics& metrics_;
  const Clock& clock_;
  const DeviceLaneOptions options_;
  const std::string name_;

  Buffer arena_;
  std::unique_ptr<Staging> staging_;
  // Destroyed first: their destructors wait for work that uses the memory above.
  std::vector<std::unique_ptr<DeviceStream>> streams_;
  DeviceStream* in_ = nullptr;  // Of `streams_`, as are these:
  DeviceStream* compute_ = nullptr;
  DeviceStream* out_ = nullptr;
};

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_DEVICE_DEVICE_LANE_H_
