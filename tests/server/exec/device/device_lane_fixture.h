// The lanes of fake devices, a model on them and its requests.

#ifndef NORMD_TESTS_SERVER_EXEC_DEVICE_DEVICE_LANE_FIXTURE_H_
#define NORMD_TESTS_SERVER_EXEC_DEVICE_DEVICE_LANE_FIXTURE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "server/exec/device/device_backend.h"
#include "tests/support/fake_device.h"
#include "tests/support/lane_request.h"
#include "tests/support/models.h"

namespace normd {

// Small sizes everywhere, so that a tensor of some kilobytes already uses every mechanism.
inline DeviceBackendOptions SmallOptions() {
  DeviceBackendOptions options;
  options.lanes_per_device = 1;
  options.pool_bytes = 64 << 10;
  options.lane.arena_bytes = 32 << 10;
  options.lane.chunk_bytes = 512;
  options.lane.chunks = 2;
  options.lane.piece_bytes = 1024;
  options.lane.mapped_bytes = 0;
  return options;
}

// Requests for one model on the lanes of fake devices.
class DeviceFixture : public ::testing::Test {
 protected:
  ~DeviceFixture() override { Stop(); }

  void Start(const DeviceBackendOptions& options, int device_count = 1) {
    Stop();
    sent_.clear();
    devices_.clear();
    std::vector<std::unique_ptr<Device>> devices;
    for (int i = 0; i < device_count; ++i) {
      auto device = std::make_unique<FakeDevice>("fake:" + std::to_string(i), 1 << 20);
      devices_.push_back(device.get());
      devices.push_back(std::move(device));
    }
    device_ = devices_.front();
    backend_ = *DeviceBackend::Create(std::move(devices), options, *metrics_, clock_);
    lanes_ = backend_->MakeLanes();
  }
  void Stop() {
    lanes_.clear();
    model_.reset();
  }
  void Load(std::shared_ptr<const Model> model) {
    auto state = backend_->Prepare(*model);
    ASSERT_TRUE(state.ok()) << state.status();
    const_cast<Model&>(*model).set_backend_state(*std::move(state));
    model_ = std::move(model);
  }

  // A request of the next batch: random values, their bytes in slices of odd lengths.
  LaneRequest& AddRequest(const std::vector<Dims>& shapes) {
    LaneRequest& request = sent_.emplace_back(model_, shapes, norm::DType::kFloat32, sent_.size());
    request.request()->id = sent_.size();
    request.Lay(Split::kSlices);
    return request;
  }
  // What has been added since the last batch.
  std::unique_ptr<Batch> TakeBatch() {
    std::vector<LaneRequest*> requests;
    for (LaneRequest& request : sent_) {
      if (request.request() != nullptr) requests.push_back(&request);
    }
    return BatchOf(requests);
  }
  absl::Status Execute(std::size_t lane = 0) { return lanes_[lane]->Execute(TakeBatch()); }
  void Stage(LaneRequest& request) { backend_->stager()->Stage(*request.request()); }

  static void ExpectRight(const LaneRequest& request) {
    EXPECT_EQ(request.Wrong(Closeness::kRounded), "");
  }
  void ExecuteAndExpectRight(std::size_t lane = 0) {
    ASSERT_TRUE(Execute(lane).ok());
    for (const LaneRequest& request : sent_) ExpectRight(request);
  }

  // The scrape's line of the device's series `name` whose second label is `label`; "" if none.
  std::string Series(const std::string& name, const std::string& label,
                     const std::string& device = "fake:0") const {
    const std::string start = name + "{device=\"" + device + "\"," + label + "} ";
    const std::string scrape = metrics_->Scrape();
    const std::size_t begin = scrape.find("\n" + start);
    if (begin == std::string::npos) return "";
    const std::size_t value = begin + 1 + start.size();
    return scrape.substr(value, scrape.find('\n', value) - value);
  }

  SteadyClock clock_;
  std::unique_ptr<Metrics> metrics_ = std::make_unique<Metrics>();
  std::vector<FakeDevice*> devices_;
  FakeDevice* device_ = nullptr;  // The first of them.
  std::unique_ptr<DeviceBackend> backend_;
  std::shared_ptr<const Model> model_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::deque<LaneRequest> sent_;
};

// GroupNorm of three groups.
class DeviceLaneTest : public DeviceFixture {
 protected:
  static constexpr std::int64_t kChannels = 6;

  DeviceLaneTest() { Start(SmallOptions()); }

  void Start(const DeviceBackendOptions& options, int device_count = 1) {
    DeviceFixture::Start(options, device_count);
    Load(MakeModel("m", "group_norm { channels: 6 groups: 3 }", metrics_->ForModel("m", 1),
                   MakeParameters({{"weight", {kChannels}}, {"bias", {kChannels}}})));
  }
  LaneRequest& Add(std::int64_t samples, std::int64_t spatial) {
    return AddRequest({{samples, kChannels, spatial}});
  }
};

// The bytes up to which a batch goes through the link: none, or all of them.
constexpr std::size_t kMappedBytes[] = {0, std::size_t{16} << 10};

}  // namespace normd

#endif  // NORMD_TESTS_SERVER_EXEC_DEVICE_DEVICE_LANE_FIXTURE_H_
