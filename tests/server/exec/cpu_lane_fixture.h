// A lane of the CPU with all that it needs, and requests that go through it.

#ifndef NORMD_TESTS_SERVER_EXEC_CPU_LANE_FIXTURE_H_
#define NORMD_TESTS_SERVER_EXEC_CPU_LANE_FIXTURE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "server/exec/cpu_lane.h"
#include "tests/support/counting_metrics.h"
#include "tests/support/fake_clock.h"
#include "tests/support/tensor.h"

namespace normd {

class CpuLaneFixture : public testing::Test {
 protected:
  static constexpr std::uint64_t kBatchId = 7;

  // Runs the requests as one batch, of the first one's model and type.
  void Run(std::vector<std::unique_ptr<Request>> requests) {
    auto batch = std::make_unique<Batch>();
    batch->id = kBatchId;
    batch->model = requests.front()->model;
    batch->dtype = requests.front()->dtype;
    for (auto& request : requests) batch->requests.push_back(std::move(request));
    EXPECT_TRUE(lane_.Execute(std::move(batch)).ok());
  }
  void Run(std::unique_ptr<Request> request) {
    std::vector<std::unique_ptr<Request>> requests;
    requests.push_back(std::move(request));
    Run(std::move(requests));
  }

  // An output that is expected to have the type and size of `like`.
  static norm::testing::Tensor OutputOf(const Completion& completion, std::size_t index,
                                        const norm::testing::Tensor& like) {
    norm::testing::Tensor tensor(like.dtype(), like.count());
    EXPECT_EQ(completion.status, absl::OkStatus());
    EXPECT_GT(completion.outputs.size(), index);
    if (index >= completion.outputs.size()) return tensor;
    const Buffer& output = completion.outputs[index];
    EXPECT_EQ(output.size(), tensor.bytes());
    if (output.size() == tensor.bytes() && output.size() > 0) {
      std::memcpy(tensor.data(), output.data(), output.size());
    }
    return tensor;
  }

  TickingClock clock_;
  CountingModelMetrics metrics_;
  CountingLaneMetrics lane_metrics_;
  norm::cpu::Executor kernels_{2};
  BufferPool pool_{std::int64_t{64} << 20};
  CpuLane lane_{"cpu:0", kernels_, pool_, lane_metrics_, clock_};
};

}  // namespace normd

#endif  // NORMD_TESTS_SERVER_EXEC_CPU_LANE_FIXTURE_H_
