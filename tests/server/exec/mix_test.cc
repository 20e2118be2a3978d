// Requests with several inputs and outputs of different types on the CPU, from the queue to `done`.

#include <chrono>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/batching/batch_queue.h"
#include "tests/server/exec/cpu_lane_fixture.h"
#include "tests/support/mix_operation.h"
#include "tests/support/mix_request.h"
#include "tests/support/tensor.h"

namespace normd {
namespace {

using testing::HasSubstr;

constexpr MemoryPlace kHostPlaces[] = {{MemoryKind::kHost}, {MemoryKind::kPinned}};

class MixTest : public CpuLaneFixture {
 protected:
  std::shared_ptr<const Model> LoadMix(bool overwrites) {
    std::shared_ptr<Model> model = MakeMixModel(metrics_);
    model->set_backend_state(MakeCpuMix(overwrites));
    return model;
  }
  // Any layout that the CPU takes.
  MixRequest::Layouts AnyLayouts() {
    MixRequest::Layouts layouts;
    for (MixLayout& input : layouts.inputs) {
      input = {kHostPlaces[random_() % 2], random_() % 2 == 0};
    }
    for (std::size_t o = 0; o < 2; ++o) {
      layouts.named[o] = random_() % 2 == 0;
      layouts.outputs[o] = kHostPlaces[random_() % 2];
    }
    return layouts;
  }
};

TEST_F(MixTest, TensorsOfEveryLayoutAndSizeTravelThroughQueueAndLane) {
  for (const bool overwrites : {false, true}) {
    const auto model = LoadMix(overwrites);
    BatchQueue queue({}, clock_);
    std::deque<MixRequest> requests;
    for (int i = 0; i < 300; ++i) {
      const auto samples = static_cast<std::int64_t>(random_() % 40);
      MixRequest& request = requests.emplace_back(model, static_cast<std::uint64_t>(i + 1), samples,
                                                  AnyLayouts(), random_);
      ASSERT_TRUE(queue.Push(request.request()).ok());
      if (random_() % 4 != 0) continue;
      std::unique_ptr<Batch> batch = queue.TryTake().batch;
      ASSERT_NE(batch, nullptr);
      ASSERT_TRUE(lane_.Execute(std::move(batch)).ok());
    }
    while (std::unique_ptr<Batch> batch = queue.TryTake().batch) {
      ASSERT_TRUE(lane_.Execute(std::move(batch)).ok());
    }
    for (const MixRequest& request : requests) {
      EXPECT_EQ(request.Wrong(), "");
      EXPECT_TRUE(request.InputsIntact());
    }
    queue.Close();
  }
}

TEST_F(MixTest, MemoryOfADeviceIsRefusedByNameAndNobodyElseSuffers) {
  const auto model = LoadMix(true);
  for (std::size_t tensor = 0; tensor < 5; ++tensor) {
    MixRequest::Layouts layouts;
    const MemoryPlace device = {MemoryKind::kDevice, 1};
    if (tensor < 3) {
      layouts.inputs[tensor].place = device;
    } else {
      layouts.named[tensor - 3] = true;
      layouts.outputs[tensor - 3] = device;
    }
    MixRequest before(model, 1, 4, {}, random_);
    MixRequest refused(model, 2, 4, layouts, random_);
    MixRequest after(model, 3, 4, {}, random_);
    auto batch = std::make_unique<Batch>();
    batch->model = model;
    for (MixRequest* request : {&before, &refused, &after}) {
      batch->requests.push_back(std::move(request->request()));
    }
    Run(std::move(batch));
    EXPECT_EQ(before.Wrong(), "");
    EXPECT_EQ(after.Wrong(), "");
    ASSERT_EQ(refused.done_calls(), 1);
    const std::string name = tensor < 3 ? "inputs[" + std::to_string(tensor) + "]"
                                        : "outputs[" + std::to_string(tensor - 3) + "]";
    EXPECT_EQ(refused.completion().status,
              absl::InvalidArgumentError(
                  name + ": lies in memory of device 1, wanted host or pinned memory"));
  }
}

}  // namespace
}  // namespace normd
