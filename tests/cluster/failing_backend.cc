// For failing_normd, the backend that --device=cuda names: devices in host memory, over which the
// lanes, pools and models are the server's, and which fail when a line of the standard input says
// so:
//
//   lane     one launch fails, so that the lane that makes it retires
//   device   from the next launch on every call fails, as after an error that nothing clears

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/exec/backends.h"
#include "server/exec/device/device_backend.h"
#include "tests/support/fake_device.h"

namespace normd {
namespace {

constexpr std::int64_t kDeviceBytes = std::int64_t{8} << 30;
constexpr int kPollMs = 20;

class FailingBackend final : public Backend {
 public:
  // `devices` are those of `inner`.
  FailingBackend(std::unique_ptr<DeviceBackend> inner, std::vector<FakeDevice*> devices)
      : inner_(std::move(inner)),
        devices_(std::move(devices)),
        commands_([this](const std::stop_token& stop) { ReadCommands(stop); }) {}

  absl::StatusOr<std::unique_ptr<BackendState>> Prepare(const Model& model) override {
    return inner_->Prepare(model);
  }
  std::vector<std::unique_ptr<Lane>> MakeLanes() override { return inner_->MakeLanes(); }
  std::vector<std::unique_ptr<Lane>> MakeInlineLanes() override {
    return inner_->MakeInlineLanes();
  }
  InputStager* stager() override { return inner_->stager(); }
  std::string Description() const override { return inner_->Description(); }

 private:
  void ReadCommands(const std::stop_token& stop) {
    std::string line;
    while (!stop.stop_requested()) {
      pollfd input{STDIN_FILENO, POLLIN, 0};
      if (poll(&input, 1, kPollMs) <= 0) continue;
      char c = 0;
      if (read(STDIN_FILENO, &c, 1) != 1) return;
      if (c != '\n') {
        line += c;
      } else {
        Fail(std::exchange(line, {}));
      }
    }
  }

  void Fail(std::string_view what) {
    for (FakeDevice* device : devices_) {
      device->FailCall(DeviceCall::kNormalize, 1, absl::InternalError("injected"),
                       /*sticky=*/what == "device");
    }
  }

  const std::unique_ptr<DeviceBackend> inner_;
  const std::vector<FakeDevice*> devices_;
  std::jthread commands_;  // Last: it uses the others.
};

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> CreateCudaBackend(const std::vector<int>& ordinals,
                                                           const BackendOptions& options,
                                                           Metrics& metrics, const Clock& clock) {
  DeviceBackendOptions device_options;
  device_options.lanes_per_device = options.device_lanes;
  device_options.pool_bytes = static_cast<std::size_t>(options.pinned_pool_bytes);
  device_options.inline_bytes = static_cast<std::size_t>(options.max_inline_bytes);
  device_options.inline_lanes_per_device = options.max_inline_bytes > 0 ? 2 : 0;
  std::vector<FakeDevice*> fakes;
  std::vector<std::unique_ptr<Device>> devices;
  for (std::size_t i = 0; i < std::max<std::size_t>(ordinals.size(), 1); ++i) {
    auto device = std::make_unique<FakeDevice>(absl::StrCat("fake:", i), kDeviceBytes);
    fakes.push_back(device.get());
    devices.push_back(std::move(device));
  }
  auto inner = DeviceBackend::Create(std::move(devices), device_options, metrics, clock);
  if (!inner.ok()) return inner.status();
  return std::make_unique<FailingBackend>(*std::move(inner), std::move(fakes));
}

}  // namespace normd
