// The contract of kernels/norm.h on devices.

#ifndef NORMD_SERVER_EXEC_DEVICE_DEVICE_NORM_H_
#define NORMD_SERVER_EXEC_DEVICE_DEVICE_NORM_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/buffer.h"
#include "kernels/segment_tensors.h"
#include "operations/kernel_program.h"
#include "server/exec/device/device_program.h"

namespace normd {

class DeviceNorm final : public DeviceProgram {
 public:
  // Uploads the parameters to every device, in one block each; blocks until they are there. The
  // model that owns `program` will own this. ResourceExhausted, with the numbers, when one of the
  // devices has no room.
  static absl::StatusOr<std::unique_ptr<DeviceNorm>> Upload(
      const NormProgram& program, absl::Span<const std::unique_ptr<Device>> devices);

  absl::Span<const int> overwrites() const override { return overwrites_; }
  bool gains_from_pieces() const override { return true; }
  // One launch for each run of segments that cover the same channels.
  absl::Status Launch(const DeviceSite& site, norm::DType dtype,
                      absl::Span<const DeviceSegment> segments) const override;

 private:
  struct Copy {
    Buffer memory;
    norm::NormParams params;
  };
  explicit DeviceNorm(const NormProgram& program);
  static absl::StatusOr<Copy> UploadTo(const NormProgram& program, Device& device);
  norm::Segment SegmentOf(const norm::NormSpec& spec, const DeviceSegment& segment) const;

  const NormProgram& program_;
  const std::vector<norm::SegmentInput> inputs_;
  const std::vector<norm::SegmentOutput> outputs_;
  const std::vector<int> overwrites_;
  std::vector<Copy> copies_;  // One for each device.
};

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_DEVICE_DEVICE_NORM_H_
