// A lane on one device.
//
// It divides a batch into waves that fit into its device memory, and computes each through the link
// if it is small, or in pieces (device_work.h).
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
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "server/exec/device/device.h"
#include "server/exec/device/device_wave.h"
#include "server/exec/device/device_work.h"
#include "server/exec/device/pinned_pool.h"
#include "server/exec/device/result_memory.h"
#include "server/exec/device/staging.h"
#include "server/exec/lane.h"
#include "server/metrics/metrics.h"

namespace normd {

struct DeviceLaneOptions {
  std::size_t device_index = 0;  // See DeviceSite.
  int lane_index = 0;            // Likewise.
  std::string name;
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

  const std::string& name() const override { return options_.name; }
  const std::string& device() const override { return device_.name(); }
  MemoryAccess access() const override { return access_; }
  absl::Status Execute(std::unique_ptr<Batch> batch) override;

 private:
  DeviceLane(Device& device, PinnedPool& pool, LaneMetrics& metrics, const Clock& clock,
             const DeviceLaneOptions& options);

  absl::Status ExecuteLive(Batch& batch, const BatchInfo& info);
  absl::Status Run(const Batch& batch, const DeviceProgram& program, DeviceWave& wave);
  void Reset();
  // Completes the wave's requests, or fails them with an error.
  void End(DeviceWave& wave, const absl::Status& status, const BatchInfo& info);

  Device& device_;
  LaneMetrics& metrics_;
  const Clock& clock_;
  const DeviceLaneOptions options_;
  const MemoryAccess access_;

  ResultMemory results_;
  Buffer arena_;
  std::unique_ptr<Staging> staging_;
  DeviceStreams streams_;  // Destroyed first: they wait for work that uses the memory above.
};

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_DEVICE_DEVICE_LANE_H_
