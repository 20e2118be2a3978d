// A device lane's computation for one model: an implementation of one of the kernels' contracts,
// with the model's parameters on every device. Each contract has a pair of files that derive from
// the class here.

#ifndef NORMD_SERVER_EXEC_DEVICE_DEVICE_PROGRAM_H_
#define NORMD_SERVER_EXEC_DEVICE_DEVICE_PROGRAM_H_

#include <cstddef>
#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "server/exec/device/device.h"
#include "server/model/model.h"

namespace normd {

// A run of whole samples or rows, and the places of its tensors in memory that the device
// addresses.
struct DeviceSegment {
  absl::InlinedVector<const std::byte*, kInlinedInputs> inputs;
  absl::InlinedVector<std::int64_t, kInlinedInputs> input_bytes;
  absl::InlinedVector<std::byte*, kInlinedOutputs> outputs;  // Null for those without bytes.
  std::int64_t samples = 0;
  std::int64_t spatial = 1;
  ChannelRange channels{};
  RequestOptions options;
  norm::RunSizes spatial_runs = {};
};

// The device and lane of a launch.
struct DeviceSite {
  DeviceStream& stream;
  std::size_t device = 0;  // Index into the backend's devices.
  int lane = 0;            // A lane of that device; each has at most one launch in work.
};

// Immutable. Owned by its Model, and so freed when the last batch that uses the model has ended.
class DeviceProgram : public BackendState {
 public:
  static constexpr int kNone = -1;

  // For each output, the input that it may replace exactly, or kNone. That input has the output's
  // size. A lane then keeps one place for both.
  virtual absl::Span<const int> overwrites() const = 0;

  // Whether a large batch gains from being cut, by Model::cut, into pieces that are copied and
  // computed one after another.
  virtual bool gains_from_pieces() const = 0;

  // Enqueues the computation of the segments, whose tensors' first inputs have `dtype`. An output
  // either replaces the input that it may overwrite or overlaps none.
  virtual absl::Status Launch(const DeviceSite& site, norm::DType dtype,
                              absl::Span<const DeviceSegment> segments) const = 0;
};

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_DEVICE_DEVICE_PROGRAM_H_
