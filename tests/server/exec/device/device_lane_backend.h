// The lanes of one device for the tests of every lane: with all copied, or small batches mapped.

#ifndef NORMD_TESTS_SERVER_EXEC_DEVICE_DEVICE_LANE_BACKEND_H_
#define NORMD_TESTS_SERVER_EXEC_DEVICE_DEVICE_LANE_BACKEND_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/exec/device/device_backend.h"
#include "tests/support/lane_backend.h"

namespace normd {

class DeviceLaneBackend final : public LaneBackend {
 public:
  DeviceLaneBackend(std::unique_ptr<Device> device, DeviceBackendOptions options,
                    const std::string& path, Closeness closeness)
      : closeness_(closeness) {
    if (path == "Copied") options.lane.mapped_bytes = 0;
    large_bytes_ = static_cast<std::int64_t>(options.lane.arena_bytes) / 8;
    std::vector<std::unique_ptr<Device>> devices;
    devices.push_back(std::move(device));
    backend_ = *DeviceBackend::Create(std::move(devices), options, metrics_, clock_);
    lanes_ = backend_->MakeLanes();
  }

  Lane& lane() override { return *lanes_.front(); }
  absl::StatusOr<std::unique_ptr<BackendState>> Prepare(const Model& model) override {
    return backend_->Prepare(model);
  }
  Closeness closeness() const override { return closeness_; }
  std::int64_t LargeBytes() const override { return large_bytes_; }

 private:
  const Closeness closeness_;
  std::int64_t large_bytes_ = 0;
  SteadyClock clock_;
  Metrics metrics_;
  std::unique_ptr<DeviceBackend> backend_;
  std::vector<std::unique_ptr<Lane>> lanes_;
};

}  // namespace normd

#endif  // NORMD_TESTS_SERVER_EXEC_DEVICE_DEVICE_LANE_BACKEND_H_
