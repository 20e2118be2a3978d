// A lane of the CPU with all that it needs.

#ifndef NORMD_TESTS_SERVER_EXEC_CPU_LANE_FIXTURE_H_
#define NORMD_TESTS_SERVER_EXEC_CPU_LANE_FIXTURE_H_

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/normalize.h"
#include "server/exec/cpu_lane.h"
#include "server/metrics/metrics.h"
#include "tests/support/fake_clock.h"
#include "tests/support/lane_request.h"
#include "tests/support/models.h"
#include "tests/support/tensor.h"

namespace normd {

class CpuLaneFixture : public testing::Test {
 protected:
  static constexpr std::int64_t kBatchId = 7;

  std::shared_ptr<const Model> Load(const std::string& config, const ParameterShapes& parameters) {
    return OnCpu(MakeModel("m", config, metrics_, MakeParameters(parameters)), kernels_);
  }
  void Run(std::unique_ptr<Batch> batch) {
    batch->id = kBatchId;
    EXPECT_TRUE(lane_.Execute(std::move(batch)).ok());
  }
  // Runs the requests as one batch.
  void Run(const std::vector<LaneRequest*>& requests) {
    Run(BatchOf(requests));
    for (const LaneRequest* request : requests) EXPECT_EQ(request->done_calls(), 1);
  }
  static std::string Wrong(const LaneRequest& request) {
    return request.Wrong(Closeness::kKernels);
  }

  TickingClock clock_;
  ModelMetrics metrics_;
  LaneMetrics lane_metrics_;
  norm::cpu::Executor kernels_{2};
  BufferPool pool_{std::int64_t{64} << 20};
  CpuLane lane_{"cpu:0", kernels_, pool_, lane_metrics_, clock_};
  std::mt19937_64 random_{norm::testing::TestSeed()};
};

}  // namespace normd

#endif  // NORMD_TESTS_SERVER_EXEC_CPU_LANE_FIXTURE_H_
