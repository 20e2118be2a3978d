// Lanes on a real device: every path of a batch against float64, and the same bits in every
// company.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <deque>
#include <random>
#include <utility>
#include <vector>

#include "server/batching/batch_queue.h"
#include "server/exec/executor.h"
#include "tests/server/exec/cuda/cuda_fixture.h"
#include "tests/server/exec/device/device_lane_backend.h"
#include "tests/support/lane_request.h"
#include "tests/support/request_probe.h"

namespace normd {
namespace {

using norm::DType;
using norm::testing::kFloatTypes;
using ::testing::HasSubstr;

std::vector<Dims> ShapeOf(const std::string& layout, std::int64_t samples, std::int64_t spatial) {
  return layout == "CHANNELS_LAST" ? std::vector<Dims>{{samples, spatial, 12}}
                                   : std::vector<Dims>{{samples, 12, spatial}};
}

std::string Wrong(const LaneRequest& request) { return request.Wrong(Closeness::kDeviceKernels); }

class CudaLaneTest : public CudaFixture {};

TEST_F(CudaLaneTest, EveryPathMatchesFloat64) {
  Start(SmallLanes(3));
  std::uint64_t seed = 0;
  for (const std::string layout : {"CHANNELS_FIRST", "CHANNELS_LAST"}) {
    const std::shared_ptr<const Model> model = MakeGroupNorm(layout);
    for (const DType dtype : kFloatTypes) {
      for (const std::int64_t spatial : {1, 7, 1000, 40'000}) {
        SCOPED_TRACE(layout + " " + norm::Name(dtype) + " " + std::to_string(spatial));
        std::deque<LaneRequest> requests;
        std::vector<LaneRequest*> batch;
        for (const std::int64_t samples : {1, 3, 0, 2}) {
          batch.push_back(
              &requests.emplace_back(model, ShapeOf(layout, samples, spatial), dtype, ++seed));
        }
        ASSERT_TRUE(lanes_[0]->Execute(BatchOf(batch)).ok());
        for (const LaneRequest& request : requests) EXPECT_EQ(Wrong(request), "");
      }
    }
  }
}

TEST_F(CudaLaneTest, ARequestsBitsDependOnNeitherItsCompanyNorTheLane) {
  Start(SmallLanes(3));
  const std::shared_ptr<const Model> model = MakeGroupNorm("CHANNELS_FIRST");
  std::mt19937_64 random(norm::testing::TestSeed());
  std::vector<std::vector<Dims>> shapes;
  std::deque<LaneRequest> alone;
  for (std::uint64_t i = 0; i < 60; ++i) {
    const auto spatial = static_cast<std::int64_t>(random() % (i % 7 == 0 ? 30'000 : 900) + 1);
    shapes.push_back({{static_cast<std::int64_t>(random() % 4 + 1), 12, spatial}});
    LaneRequest* const batch[] = {&alone.emplace_back(model, shapes[i], DType::kFloat32, i)};
    ASSERT_TRUE(lanes_[0]->Execute(BatchOf(batch)).ok());
  }

  BatchQueueOptions options;
  BatchQueue queue(options, clock_);
  Executor executor(std::move(lanes_), queue);
  executor.Start([&queue](const absl::Status& status) {
    queue.Close();
    queue.Abort(status);
  });
  for (int round = 0; round < 20; ++round) {
    std::vector<std::unique_ptr<RequestProbe>> probes;
    for (std::size_t i = 0; i < alone.size(); ++i) {
      const auto* x = static_cast<const std::byte*>(alone[i].input(0).data());
      probes.push_back(
          std::make_unique<RequestProbe>(model, shapes[i][0], DType::kFloat32,
                                         std::vector<std::byte>(x, x + alone[i].input(0).bytes())));
      if (!queue.Push(probes.back()->request()).ok()) probes.pop_back();
    }
    EXPECT_EQ(probes.size(), alone.size()) << "round " << round;
    for (std::size_t i = 0; i < probes.size(); ++i) {
      probes[i]->Wait();
      ASSERT_EQ(probes[i]->code(), absl::StatusCode::kOk) << probes[i]->completion().status;
      const Buffer& output = probes[i]->completion().outputs[0];
      const Buffer& wanted = alone[i].completion().outputs[0];
      ASSERT_EQ(output.size(), wanted.size());
      EXPECT_EQ(std::memcmp(output.data(), wanted.data(), wanted.size()), 0)
          << "request " << i << ", round " << round;
    }
    if (HasFailure()) break;
  }
  queue.Close();
  executor.Join();
}

struct Fault {
  DeviceCall call;
  int nth;
};

class CudaLaneFaultTest : public CudaLaneTest, public ::testing::WithParamInterface<Fault> {};

// While copies and kernels of the batch's other pieces are under way.
TEST_P(CudaLaneFaultTest, EndsTheBatchWithInternalAndHurtsNoOtherLane) {
  Start(SmallLanes(3));
  const std::shared_ptr<const Model> model = MakeGroupNorm("CHANNELS_FIRST");
  for (const bool faulty : {true, false, false}) {
    if (faulty) {
      device_->FailCall(GetParam().call, GetParam().nth, absl::InternalError("injected"));
    }
    std::deque<LaneRequest> requests;
    std::vector<LaneRequest*> batch;
    for (int i = 0; i < 3; ++i) {
      batch.push_back(&requests.emplace_back(model, std::vector<Dims>{{20, 12, 4001}}));
    }
    const absl::Status status = lanes_[faulty ? 0 : 1]->Execute(BatchOf(batch));
    EXPECT_EQ(status.code(), faulty ? absl::StatusCode::kInternal : absl::StatusCode::kOk);
    for (const LaneRequest& request : requests) {
      if (faulty) {
        EXPECT_EQ(request.code(), absl::StatusCode::kInternal);
        EXPECT_THAT(std::string(request.completion().status.message()), HasSubstr("injected"));
      } else {
        EXPECT_EQ(Wrong(request), "");
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Faults, CudaLaneFaultTest,
    ::testing::Values(Fault{DeviceCall::kCopyIn, 9}, Fault{DeviceCall::kNormalize, 5},
                      Fault{DeviceCall::kCopyOut, 4}, Fault{DeviceCall::kAddMark, 20},
                      Fault{DeviceCall::kAwait, 7}, Fault{DeviceCall::kAddPoint, 11},
                      Fault{DeviceCall::kWait, 1}));

TEST_F(CudaLaneTest, AModelsMemoryComesBackWithIt) {
  Start(SmallLanes(3));
  const auto free_bytes = [this] { return device_->MemoryInfo()->free_bytes; };
  const std::int64_t before = free_bytes();
  std::shared_ptr<const Model> model =
      MakeModel("wide", "rms_norm { normalized_shape: 8000000 }", metrics_.ForModel("wide", 1),
                MakeParameters({{"weight", {8'000'000}}}));
  const_cast<Model&>(*model).set_backend_state(*backend_->Prepare(*model));
  EXPECT_LE(free_bytes(), before - 32'000'000);
  model.reset();
  EXPECT_EQ(free_bytes(), before);
}

TEST_F(CudaLaneTest, AModelThatDoesNotFitFailsItsLoadWithTheNumbers) {
  Start(SmallLanes(3));
  const Buffer most =
      *device_->Allocate(MemoryKind::kDevice,
                         static_cast<std::size_t>(device_->MemoryInfo()->free_bytes) - (64 << 20));
  const std::shared_ptr<const Model> model =
      MakeModel("wide", "rms_norm { normalized_shape: 40000000 }", metrics_.ForModel("wide", 1),
                MakeParameters({{"weight", {40'000'000}}}));
  const auto state = backend_->Prepare(*model);
  EXPECT_EQ(state.status().code(), absl::StatusCode::kResourceExhausted) << state.status();
  EXPECT_THAT(std::string(state.status().message()), HasSubstr("wanted 160000000 bytes, free "));
}

TEST_F(CudaLaneTest, MemoryThatIsNotThereIsRefusedWithTheNumbersAndHurtsNobody) {
  Start(SmallLanes(3));
  const absl::StatusOr<Buffer> memory =
      device_->Allocate(MemoryKind::kDevice, std::size_t{1} << 50);
  EXPECT_EQ(memory.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(memory.status().message()), HasSubstr("free"));
  EXPECT_TRUE(device_->usable());
  const std::shared_ptr<const Model> model = MakeGroupNorm("CHANNELS_FIRST");
  LaneRequest request(model, {{1, 12, 9}});
  LaneRequest* const batch[] = {&request};
  ASSERT_TRUE(lanes_[0]->Execute(BatchOf(batch)).ok());
  EXPECT_EQ(Wrong(request), "");
}

}  // namespace

// What lane_test.cc runs on here.

std::vector<std::string> LanePaths() { return {"Copied", "Mapped"}; }

std::unique_ptr<LaneBackend> MakeLaneBackend(const std::string& path) {
  if (CudaDeviceCount() == 0) return nullptr;
  return std::make_unique<DeviceLaneBackend>(*OpenCudaDevice(0), SmallLanes(1), path,
                                             Closeness::kDeviceKernels);
}

}  // namespace normd
