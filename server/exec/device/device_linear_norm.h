// The contract of kernels/linear_norm.h on devices.

#ifndef NORMD_SERVER_EXEC_DEVICE_DEVICE_LINEAR_NORM_H_
#define NORMD_SERVER_EXEC_DEVICE_DEVICE_LINEAR_NORM_H_

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/buffer.h"
#include "base/bytes.h"
#include "kernels/linear_norm.h"
#include "operations/kernel_program.h"
#include "server/exec/device/device.h"
#include "server/exec/device/device_program.h"

namespace normd {

inline constexpr std::size_t kPrecisionCount = 4;

// The layout of a layer's block of device memory; offsets and sizes in bytes.
struct LinearBlock {
  std::array<std::size_t, kPrecisionCount> prepared_offset{};  // In the order of norm::Precision.
  std::array<std::size_t, kPrecisionCount> prepared_bytes{};
  std::size_t workspace_offset = 0;  // For the first lane; the others' follow.
  std::size_t workspace_bytes = 0;   // Per lane.
  std::size_t bytes = 0;
};
// The block for `device`'s sizes of each precision. Pure.
LinearBlock MakeLinearBlock(const norm::LinearNormSpec& spec, const Device& device, int lanes);

// A request may ask for any precision, so the weights are present in every form. Because nothing is
// allocated for a request, so is a workspace for each lane.
class DeviceLinearNorm final : public DeviceProgram {
 public:
  // Uploads and prepares the weights on every device; blocks until they are there. For a while a
  // device also holds them in the file's form. The model that owns `program` will own this.
  // ResourceExhausted, with the numbers, when one of the devices has no room.
  static absl::StatusOr<std::unique_ptr<DeviceLinearNorm>> Upload(
      const LinearNormProgram& program, absl::Span<const std::unique_ptr<Device>> devices,
      int lanes_per_device);

  // The output may take the place of y.
  absl::Span<const int> overwrites() const override;
  // The product is best with all samples in one launch.
  bool gains_from_pieces() const override { return false; }
  // One launch for each precision that the segments ask for.
  absl::Status Launch(const DeviceSite& site, norm::DType dtype,
                      absl::Span<const DeviceSegment> segments) const override;

 private:
  struct Copy {
    Buffer memory;
    std::byte* data = nullptr;  // The memory's.
    LinearBlock block;
  };
  explicit DeviceLinearNorm(const LinearNormProgram& program) : program_(program) {}
  static absl::StatusOr<Copy> UploadTo(const LinearNormProgram& program, Device& device, int lanes);
  ConstBytes Prepared(std::size_t device, norm::Precision precision) const;
  // The workspace of that device's lane.
  MutableBytes Workspace(std::size_t device, int lane) const;

  const LinearNormProgram& program_;
  std::vector<Copy> copies_;  // One for each device.
};

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_DEVICE_DEVICE_LINEAR_NORM_H_
