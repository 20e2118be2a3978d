// A model's parameters on the devices.

#ifndef NORMD_SERVER_EXEC_DEVICE_DEVICE_MODEL_H_
#define NORMD_SERVER_EXEC_DEVICE_DEVICE_MODEL_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/buffer.h"
#include "kernels/norm.h"
#include "server/exec/device/device.h"
#include "server/model/model.h"

namespace normd {

// Immutable. Owned by its Model, and so freed when the last batch that uses the model has ended.
class DeviceModel final : public BackendState {
 public:
  // Uploads the parameters to every device, in one block each; blocks until they are there.
  // ResourceExhausted, with the numbers, when one of them has no room.
  static absl::StatusOr<std::unique_ptr<DeviceModel>> Upload(const Model& model,
                                                             absl::Span<Device* const> devices);

  // The parameters in the memory of device `index` of Upload's devices.
  const norm::NormParams& params(std::size_t index) const { return copies_[index].params; }

 private:
  struct Copy {
    Buffer memory;
    norm::NormParams params;
  };
  DeviceModel() = default;
  static absl::StatusOr<Copy> UploadTo(const norm::NormParams& host, std::int64_t channels,
                                       Device& device);

  std::vector<Copy> copies_;
};

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_DEVICE_DEVICE_MODEL_H_
