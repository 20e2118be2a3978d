// What the CPU's lane does beside the promises of lane_test.cc: where it reads and writes, what it
// counts, and requests that fail alone.

#include "server/exec/cpu_lane.h"
#include "operations/kernel_program.h"

#include <chrono>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/normalize.h"
#include "server/exec/backends.h"
#include "server/metrics/metrics.h"
#include "tests/server/exec/cpu_lane_fixture.h"
#include "tests/support/lane_backend.h"

namespace normd {
namespace {

using norm::DType;
using norm::testing::Tensor;
using testing::ElementsAre;
using testing::HasSubstr;

class CpuLaneTest : public CpuLaneFixture {
 protected:
  LaneRequest Make(std::int64_t samples = 1, std::int64_t spatial = 10, std::uint64_t seed = 1,
                   DType dtype = DType::kFloat32) {
    return LaneRequest(model_, {{samples, 7, spatial}}, dtype, seed);
  }

  // Seven channels: sizes that no vector width divides.
  std::shared_ptr<const Model> model_ =
      Load("instance_norm { channels: 7 affine: true }", {{"weight", {7}}, {"bias", {7}}});
};

TEST_F(CpuLaneTest, PartsOfASampleHaveTheBitsOfTheWhole) {
  LaneRequest whole = Make(1, 1031);
  Run({&whole});
  const Tensor expected = whole.Output(0);
  std::deque<LaneRequest> parts;
  std::vector<LaneRequest*> batch;
  const std::vector<ChannelRange> ranges = {{0, 2}, {2, 1}, {3, 4}, {3, 4}, {0, 7}};
  for (const ChannelRange& channels : ranges) {
    parts.push_back(Make(1, 1031));
    parts.back().CutTo(channels, 1, parts.size() % 2 == 0 ? Split::kOnePiece : Split::kWithEmpty);
    batch.push_back(&parts.back());
  }
  LaneRequest beside = Make(1, 1031);
  beside.Lay(Split::kWithEmpty);
  batch.push_back(&beside);
  Run(batch);
  EXPECT_EQ(beside.Differs(whole), "");
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Tensor part = parts[i].Output(0);
    ASSERT_EQ(part.count(), ranges[i].count * 1031);
    EXPECT_EQ(Wrong(parts[i]), "") << "part " << i;
    for (std::int64_t k = 0; k < part.count(); ++k) {
      ASSERT_EQ(part.Get(k), expected.Get(ranges[i].first * 1031 + k)) << "part " << i;
    }
  }
}

TEST_F(CpuLaneTest, ABatchThatNobodyWantsIsNoBatch) {
  LaneRequest cancelled = Make();
  cancelled.request()->cancelled = std::make_shared<std::atomic<bool>>(true);
  Run({&cancelled});
  EXPECT_EQ(metrics_.Totals().batches, 0);
}

TEST_F(CpuLaneTest, ARequestWhoseMemoryCannotBeHadFailsAlone) {
  LaneRequest before = Make();
  LaneRequest huge = Make();
  LaneRequest short_input = Make();
  LaneRequest odd_output = Make();
  LaneRequest after = Make();
  huge.request()->geometry.outputs[0].bytes = std::int64_t{1} << 60;
  short_input.request()->inputs[0].views.back().remove_suffix(1);
  std::vector<std::byte> memory(281);
  odd_output.NameOutput(0, MutableBytes(memory.data() + 1, 280));
  Run({&before, &huge, &short_input, &odd_output, &after});
  EXPECT_EQ(huge.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(short_input.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(short_input.completion().status.message()),
              HasSubstr("inputs[0]: 279 bytes, wanted the tensor's 280"));
  EXPECT_EQ(odd_output.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(Wrong(before), "");
  EXPECT_EQ(Wrong(after), "");
}

TEST_F(CpuLaneTest, TellsStageTimesAndTheBatch) {
  LaneRequest a = Make();
  LaneRequest b = Make();
  b.Lay(Split::kWithEmpty);
  Run({&a, &b});
  for (const LaneRequest* request : {&a, &b}) {
    const Completion& completion = request->completion();
    EXPECT_EQ(completion.stages[Stage::kGather], std::chrono::microseconds(1));
    EXPECT_EQ(completion.stages[Stage::kCompute], std::chrono::microseconds(1));
    EXPECT_EQ(completion.batch.id, kBatchId);
    EXPECT_EQ(completion.batch.requests, 2);
    EXPECT_EQ(completion.batch.bytes, 2 * 280);
    EXPECT_EQ(completion.batch.lane, "cpu:0");
  }
  EXPECT_EQ(metrics_.Totals().batches, 1);
  FamilyList collected;
  metrics_.model()->Collect(collected);
  std::vector<double> batch_bytes;
  for (const prometheus::MetricFamily& family : std::move(collected).Take()) {
    if (family.name != families::kBatchBytes.name) continue;
    batch_bytes.push_back(family.metric.front().histogram.sample_sum);
  }
  EXPECT_THAT(batch_bytes, ElementsAre(2 * 280));
  EXPECT_EQ(lane_metrics_.busy_seconds(), 3e-6);
}

TEST_F(CpuLaneTest, OutputsReturnToThePoolWhenTheirOwnersLetGo) {
  {
    LaneRequest request = Make();
    Run({&request});
    EXPECT_GT(pool_.used_bytes(), 0);
  }
  EXPECT_EQ(pool_.used_bytes(), 0);
  EXPECT_GT(pool_.free_bytes(), 0);
}

class CpuLaneBackend final : public LaneBackend {
 public:
  Lane& lane() override { return lane_; }
  absl::StatusOr<std::unique_ptr<BackendState>> Prepare(const Model& model) override {
    return MakeCpuProgram(model, kernels_);
  }
  Closeness closeness() const override { return Closeness::kKernels; }
  std::int64_t LargeBytes() const override { return std::int64_t{6} << 20; }

 private:
  SteadyClock clock_;
  LaneMetrics metrics_;
  norm::cpu::Executor kernels_{2};
  BufferPool pool_{std::int64_t{64} << 20};
  CpuLane lane_{"cpu:0", kernels_, pool_, metrics_, clock_};
};

}  // namespace

// What lane_test.cc runs on here.

std::vector<std::string> LanePaths() { return {"Cpu"}; }

std::unique_ptr<LaneBackend> MakeLaneBackend(const std::string&) {
  return std::make_unique<CpuLaneBackend>();
}

}  // namespace normd
