// A fused layer's weights on the devices.

#ifndef NORMD_SERVER_EXEC_DEVICE_DEVICE_LINEAR_MODEL_H_
#define NORMD_SERVER_EXEC_DEVICE_DEVICE_LINEAR_MODEL_H_

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/buffer.h"
#include "base/bytes.h"
#include "kernels/linear_norm.h"
#include "server/exec/device/device.h"
#include "server/model/model.h"

namespace normd {

inline constexpr std::size_t kPrecisionCount = 4;

// Where a layer's parts lie in its block of a device's memory; offsets and sizes in bytes.
struct LinearBlock {
  std::array<std::size_t, kPrecisionCount> prepared_offset{};  // In the order of norm::Precision.
  std::array<std::size_t, kPrecisionCount> prepared_bytes{};
  std::size_t workspace_offset = 0;  // Of the first lane's; the others' follow.
  std::size_t workspace_bytes = 0;   // Of one lane.
  std::size_t bytes = 0;
};
// Of what `device` says of each precision. Pure.
LinearBlock MakeLinearBlock(const norm::LinearNormSpec& spec, const Device& device, int lanes);

// Immutable. Owned by its Model, and so freed when the last batch that uses the model has ended.
// A request may ask for any precision, so the weights are there in the form of each; and because
// nothing is allocated on the way of a request, so is a workspace for each lane.
class DeviceLinearModel final : public BackendState {
 public:
  // Uploads and prepares the weights on every device; blocks until they are there. For a while a
  // device also holds them as they are in the file. ResourceExhausted, with the numbers, when one
  // of them has no room.
  static absl::StatusOr<std::unique_ptr<DeviceLinearModel>> Upload(
      const Model& model, absl::Span<Device* const> devices, int lanes_per_device);

  // In the memory of device `device` of Upload's.
  ConstBytes prepared(std::size_t device, norm::Precision precision) const;
  // Of that device's lane `lane`, which uses it for one call at a time.
  MutableBytes workspace(std::size_t device, int lane) const;

 private:
  struct Copy {
    Buffer memory;
    std::byte* data = nullptr;  // The memory's.
    LinearBlock block;
  };
  DeviceLinearModel() = default;
  static absl::StatusOr<Copy> UploadTo(const Model& model, Device& device, int lanes);

  std::vector<Copy> copies_;
};

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_DEVICE_DEVICE_LINEAR_MODEL_H_
