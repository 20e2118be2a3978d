// The two ways in which a lane computes a wave.

#ifndef NORMD_SERVER_EXEC_DEVICE_DEVICE_WORK_H_
#define NORMD_SERVER_EXEC_DEVICE_DEVICE_WORK_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "operations/geometry.h"
#include "server/exec/device/device.h"
#include "server/exec/device/device_program.h"
#include "server/exec/device/device_wave.h"
#include "server/exec/device/staging.h"

namespace normd {

// A lane's streams: one for all, or one each for copies in, kernels and copies out.
struct DeviceStreams {
  std::vector<std::unique_ptr<DeviceStream>> all;

  DeviceStream& in() const { return *all.front(); }
  DeviceStream& compute() const { return *all[all.size() / 2]; }
  DeviceStream& out() const { return *all.back(); }
  // Waits for all, in any case, so that no memory is returned while it is in use.
  void Drain() const {
    for (const auto& stream : all) static_cast<void>(stream->Wait());
  }
};

// A wave's program, and what the lane lends to its computation; all are borrowed.
struct DeviceWork {
  const DeviceProgram& program;
  norm::DType dtype;
  DeviceSite site;  // The stream of the kernels, as in `streams`.
  Device& device;
  const Clock& clock;
  const DeviceStreams& streams;
  Staging& staging;
  std::byte* arena;  // Device memory for the whole wave.
};

// Both fill the wave's times and the bytes that crossed the link, and release the inputs that are
// not read in place as soon as they have been read. When they return, no enqueued work is left.
// Errors are the device's or the program's; the outputs are then undefined.

// Whether RunMapped can compute the wave: with at most `most_bytes`, one chunk of staging has room
// for what it gathers, and the kernels can address every output.
bool CanRunMapped(const DeviceWave& wave, std::size_t most_bytes, const Staging& staging);
// In one launch, on memory that both sides address: no copy is enqueued, and one wait is enough.
// The host gathers inputs to the outputs that may overwrite them, or to a chunk.
absl::Status RunMapped(const DeviceWork& work, DeviceWave& wave);

// In pieces of about `piece_bytes`, cut by `cut`, each of which is copied in, computed and copied
// out. With three streams the steps of different pieces overlap, and no copy in waits behind a
// copy out; other lanes of the device overlap with them likewise.
absl::Status RunPieces(const DeviceWork& work, const CutRule& cut, std::int64_t piece_bytes,
                       DeviceWave& wave);

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_DEVICE_DEVICE_WORK_H_
