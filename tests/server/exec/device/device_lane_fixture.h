// A model and its requests on the lanes of fake devices.

#ifndef NORMD_TESTS_SERVER_EXEC_DEVICE_DEVICE_LANE_FIXTURE_H_
#define NORMD_TESTS_SERVER_EXEC_DEVICE_DEVICE_LANE_FIXTURE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/reference.h"
#include "operations/kernel_program.h"
#include "server/exec/device/device_backend.h"
#include "tests/support/fake_device.h"
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

// GroupNorm of three groups.
class DeviceLaneTest : public ::testing::Test {
 protected:
  static constexpr std::int64_t kChannels = 6;

  // A parameter's values.
  static std::vector<float> Ramp(float first) {
    std::vector<float> values;
    for (int i = 0; i < kChannels; ++i) values.push_back(first + 0.25F * static_cast<float>(i));
    return values;
  }

  DeviceLaneTest() { Start(SmallOptions()); }

  ~DeviceLaneTest() override {
    lanes_.clear();
    model_.reset();
  }

  // Anew, with room for what is staged.
  void StartStaging(std::size_t mapped_bytes) {
    DeviceBackendOptions options = SmallOptions();
    options.lane.mapped_bytes = mapped_bytes;
    options.max_staged_bytes = 8 << 10;
    Start(options);
    sent_.clear();
  }

  void Start(const DeviceBackendOptions& options, int device_count = 1) {
    lanes_.clear();
    model_.reset();
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
    v1::ModelConfig config;
    config.mutable_group_norm()->set_channels(kChannels);
    config.mutable_group_norm()->set_groups(3);
    std::shared_ptr<Model> model = *Model::Create(
        "m", 1, config, {MakeParameter("weight", Ramp(1)), MakeParameter("bias", Ramp(-1))},
        metrics_->ForModel("m", 1));
    model->set_backend_state(*backend_->Prepare(*model));
    model_ = model;
  }

  struct Sent {
    std::vector<float> x;
    Geometry geometry;
    int done = 0;
    Completion completion;
  };

  // A request of random values, its bytes in slices of odd lengths.
  void Add(Batch& batch, std::int64_t samples, std::int64_t spatial) {
    Sent& sent = sent_.emplace_back();
    sent.geometry =
        *model_->Check(norm::DType::kFloat32, *Shape::Create({samples, kChannels, spatial}));
    std::normal_distribution<float> normal(3, 2);
    for (std::int64_t i = 0; i < samples * kChannels * spatial; ++i)
      sent.x.push_back(normal(random_));
    auto request = std::make_unique<Request>();
    request->id = sent_.size();
    request->model = model_;
    request->geometry = sent.geometry;
    const auto* bytes = reinterpret_cast<const std::byte*>(sent.x.data());
    const auto size = static_cast<std::size_t>(sent.geometry.inputs[0].bytes);
    request->inputs.emplace_back();
    for (std::size_t at = 0; at < size;) {
      const std::size_t part = std::min<std::size_t>(size - at, random_() % 777 + 1);
      request->inputs[0].views.emplace_back(bytes + at, part);
      at += part;
    }
    request->done = [&sent](Completion completion) {
      ++sent.done;
      sent.completion = std::move(completion);
    };
    batch.model = model_;
    batch.dtype = norm::DType::kFloat32;
    batch.bytes += sent.geometry.inputs[0].bytes;
    batch.requests.push_back(std::move(request));
  }

  const NormProgram& Program() const { return std::get<NormProgram>(model_->program()); }

  void ExpectRight(const Sent& sent) {
    ASSERT_EQ(sent.done, 1);
    ASSERT_TRUE(sent.completion.status.ok()) << sent.completion.status;
    ASSERT_EQ(sent.completion.outputs[0].size(), sent.x.size() * sizeof(float));
    std::vector<double> expected(sent.x.size());
    norm::Segment segment{sent.x.data(), nullptr, sent.geometry.samples, sent.geometry.spatial};
    ASSERT_TRUE(norm::NormalizeReference(Program().Spec(norm::DType::kFloat32), Program().params,
                                         segment, expected.data())
                    .ok());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      float y = 0;
      std::memcpy(&y, sent.completion.outputs[0].data() + i * sizeof(float), sizeof(float));
      ASSERT_EQ(y, static_cast<float>(expected[i])) << "element " << i;
    }
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
  std::unique_ptr<Metrics> metrics_ = CreateMetrics({"test", ""});
  std::vector<FakeDevice*> devices_;
  FakeDevice* device_ = nullptr;  // The first of them.
  std::unique_ptr<DeviceBackend> backend_;
  std::shared_ptr<const Model> model_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::deque<Sent> sent_;
  std::mt19937 random_{20};
};

}  // namespace normd

#endif  // NORMD_TESTS_SERVER_EXEC_DEVICE_DEVICE_LANE_FIXTURE_H_
