// A CUDA device with a model on it, for tests that skip visibly where there is none.

#ifndef NORMD_TESTS_SERVER_EXEC_CUDA_CUDA_FIXTURE_H_
#define NORMD_TESTS_SERVER_EXEC_CUDA_CUDA_FIXTURE_H_

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "server/exec/cuda/cuda_device.h"
#include "server/exec/device/device_backend.h"
#include "server/metrics/metrics.h"
#include "server/model/model.h"
#include "tests/support/faulty_device.h"
#include "tests/support/models.h"

namespace normd {

// Small enough that a tensor of a megabyte goes through every mechanism.
inline DeviceBackendOptions SmallLanes(int lanes) {
  DeviceBackendOptions options;
  options.lanes_per_device = lanes;
  options.pool_bytes = 64 << 20;
  options.lane.arena_bytes = 16 << 20;
  options.lane.chunk_bytes = 100'000;
  options.lane.piece_bytes = 300'000;
  return options;
}

class CudaFixture : public ::testing::Test {
 protected:
  void SetUp() override {
    if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device on this machine";
  }

  // Lanes on device 0.
  void Start(const DeviceBackendOptions& options) {
    std::vector<std::unique_ptr<Device>> devices;
    auto device = std::make_unique<FaultyDevice>(*OpenCudaDevice(0));
    device_ = device.get();
    devices.push_back(std::move(device));
    auto backend = DeviceBackend::Create(std::move(devices), options, metrics_, clock_);
    ASSERT_TRUE(backend.ok()) << backend.status();
    backend_ = *std::move(backend);
    lanes_ = backend_->MakeLanes();
  }

  // GroupNorm with SiLU of 12 channels in 4 groups.
  std::shared_ptr<const Model> MakeGroupNorm(const std::string& layout) {
    const std::shared_ptr<const Model> model = MakeModel(
        "group_norm_" + layout,
        "group_norm { channels: 12 groups: 4 } activation: SILU layout: " + layout,
        metrics_.ForModel("group_norm", 1), MakeParameters({{"weight", {12}}, {"bias", {12}}}));
    const_cast<Model&>(*model).set_backend_state(*backend_->Prepare(*model));
    return model;
  }

  const SteadyClock clock_;
  Metrics metrics_;
  std::unique_ptr<DeviceBackend> backend_;
  FaultyDevice* device_ = nullptr;
  std::vector<std::unique_ptr<Lane>> lanes_;
};

}  // namespace normd

#endif  // NORMD_TESTS_SERVER_EXEC_CUDA_CUDA_FIXTURE_H_
