// What the CPU backend promises beyond every backend's contract: threads and sizes change no bit.

#include "kernels/cpu/normalize.h"

#include <gtest/gtest.h>
#include <oneapi/tbb/global_control.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/tensor.h"

namespace normd::norm::testing {
namespace {

struct Work {
  const char* name;
  NormSpec spec;
  std::int64_t samples;
  std::int64_t spatial;
};

NormSpec ChannelsLast(NormSpec spec) {
  spec.layout = Layout::kChannelsLast;
  return spec;
}

// One for each strategy: few long rows, many rows, rows beyond a core's cache, elementwise rows,
// few and many samples with channels last, given statistics, and a tensor beyond the caches.
std::vector<Work> AllStrategies(DType dtype) {
  return {{"few long rows", InstanceNormSpec(2, dtype), 1, 300001},
          {"many rows", InstanceNormSpec(64, dtype), 3, 5000},
          {"rows beyond a core's cache", GroupNormSpec(24, 8, dtype), 2, 150000},
          {"one layer norm row", LayerNormSpec(400003, dtype), 1, 1},
          {"many layer norm rows", LayerNormSpec(1500, dtype), 400, 1},
          {"layer norm rows beyond the caches", LayerNormSpec(1500, dtype), 6000, 1},
          {"channels last, few samples", ChannelsLast(GroupNormSpec(24, 4, dtype)), 1, 40001},
          {"channels last, three channels", ChannelsLast(InstanceNormSpec(3, dtype)), 2, 90001},
          {"channels last, many samples", ChannelsLast(InstanceNormSpec(96, dtype)), 40, 196},
          {"given", BatchNormSpec(7, dtype), 3, 50021},
          {"given, one sample of short rows", BatchNormSpec(3001, dtype), 1, 50},
          {"given, several", BatchNormSpec(3001, dtype), 3, 50},
          {"given, channels last", ChannelsLast(BatchNormSpec(7, dtype)), 3, 50021},
          {"beyond the caches", InstanceNormSpec(16, dtype), 10, 300007}};
}

Status NormalizeWork(const cpu::Executor& executor, const Work& work, const ParamSet& params,
                     const Tensor& x, Tensor* y) {
  const Segment segment{x.data(), y->data(), work.samples, work.spatial};
  return executor.Normalize(work.spec, params.View(), &segment, 1);
}

TEST(CpuExecutorTest, GivesTheSameBitsWithAnyNumberOfThreads) {
  // More threads than this machine may have cores.
  const tbb::global_control four(tbb::global_control::max_allowed_parallelism, 4);
  const cpu::Executor one(1);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const Work& work : AllStrategies(dtype)) {
      SCOPED_TRACE(work.name);
      const ParamSet params(work.spec, DType::kFloat32, TestSeed() + 30);
      Tensor x(dtype, work.samples * work.spec.channels * work.spatial, 1);
      x.Fill(Data::kUniform, TestSeed() + 31);
      Tensor expected(dtype, x.count());
      ASSERT_TRUE(NormalizeWork(one, work, params, x, &expected).ok());
      for (const int threads : {2, 3}) {
        const cpu::Executor executor(threads);
        Tensor y(dtype, x.count(), 3);
        y.Poison();
        ASSERT_TRUE(NormalizeWork(executor, work, params, x, &y).ok());
        EXPECT_TRUE(y.SameBytes(expected)) << threads << " threads";
        EXPECT_TRUE(y.GuardsIntact());
      }
    }
  }
}

// Beyond the caches a row is written while the next one is read; few rows are summed together.
TEST(CpuExecutorTest, RowsHaveTheSameBitsBeyondTheCachesAsAFewAtATime) {
  constexpr std::int64_t kRows = 6000, kFew = 100;
  const cpu::Executor executor;
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
    for (const std::int64_t channels : {1500, 1999}) {
      SCOPED_TRACE(std::string(Name(dtype)) + " " + std::to_string(channels));
      const Work work = {"", LayerNormSpec(channels, dtype), kRows, 1};
      const ParamSet params(work.spec, DType::kFloat32, TestSeed() + 34);
      Tensor x(dtype, kRows * channels);
      x.Fill(Data::kUniform, TestSeed() + 35);
      Tensor expected(dtype, x.count()), y(dtype, x.count());
      const std::int64_t bytes = kFew * channels * static_cast<std::int64_t>(SizeOf(dtype));
      for (std::int64_t i = 0; i < kRows / kFew; ++i) {
        const Segment few{static_cast<const char*>(x.data()) + i * bytes,
                          static_cast<char*>(expected.data()) + i * bytes, kFew, 1};
        ASSERT_TRUE(executor.Normalize(work.spec, params.View(), &few, 1).ok());
      }
      ASSERT_TRUE(NormalizeWork(executor, work, params, x, &y).ok());
      EXPECT_TRUE(y.SameBytes(expected));
      ASSERT_TRUE(NormalizeWork(executor, work, params, x, &x).ok());
      EXPECT_TRUE(x.SameBytes(expected)) << "in place";
    }
  }
}

// What a sample has of its own is read for one row or for many.
TEST(CpuExecutorTest, ARowHasTheSameBitsAtOnePositionAsAmongMany) {
  constexpr std::int64_t kChannels = 1003, kPositions = 5;
  const cpu::Executor executor;
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
    for (const bool affine : {false, true}) {
      SCOPED_TRACE(std::string(Name(dtype)) + (affine ? " affine" : ""));
      NormSpec spec = ChannelsLast(LayerNormSpec(kChannels, dtype));
      spec.rows = Rows::kPosition;
      spec.residual = spec.residual_out = spec.gate = spec.scale = spec.shift = true;
      const ParamSet params(spec, DType::kFloat32, TestSeed() + 33);
      const NormParams view = affine ? params.View() : NormParams();
      std::vector<Tensor> rows, channels;  // x and residual; gate, scale and shift.
      for (std::uint64_t i = 0; i < 2; ++i) {
        rows.emplace_back(dtype, kPositions * kChannels).Fill(Data::kUniform, TestSeed() + i);
      }
      for (std::uint64_t i = 2; i < 5; ++i) {
        channels.emplace_back(dtype, kChannels).Fill(Data::kUniform, TestSeed() + i);
      }
      Tensor y(dtype, kPositions * kChannels), sum(dtype, y.count());
      Tensor y_alone(dtype, y.count()), sum_alone(dtype, y.count());
      const auto segment = [&](std::int64_t position, Tensor* out, Tensor* sum_out) {
        const std::int64_t offset = position * kChannels * static_cast<std::int64_t>(SizeOf(dtype));
        Segment at;
        at.samples = 1;
        at.x = static_cast<const char*>(rows[0].data()) + offset;
        at.residual = static_cast<const char*>(rows[1].data()) + offset;
        at.y = static_cast<char*>(out->data()) + offset;
        at.residual_out = static_cast<char*>(sum_out->data()) + offset;
        at.gate = channels[0].data();
        at.scale = channels[1].data();
        at.shift = channels[2].data();
        return at;
      };
      Segment together = segment(0, &y, &sum);
      together.spatial = kPositions;
      ASSERT_TRUE(executor.Normalize(spec, view, &together, 1).ok());
      for (std::int64_t position = 0; position < kPositions; ++position) {
        const Segment alone = segment(position, &y_alone, &sum_alone);
        ASSERT_TRUE(executor.Normalize(spec, view, &alone, 1).ok());
      }
      EXPECT_TRUE(y.SameBytes(y_alone));
      EXPECT_TRUE(sum.SameBytes(sum_alone));
    }
  }
}

TEST(CpuExecutorTest, GivesTheSameBitsBeyondTheCachesAsWithinThem) {
  // The whole is stored past the caches, a sample alone is not, and in place never is.
  const cpu::Executor executor;
  const Work work{"", GroupNormSpec(16, 4, DType::kFloat32), 10, 300007};
  const ParamSet params(work.spec, DType::kFloat32, TestSeed() + 32);
  Tensor x(DType::kFloat32, work.samples * 16 * work.spatial, 5);
  x.Fill(Data::kUniform, TestSeed() + 33);
  Tensor y(DType::kFloat32, x.count(), 2);
  ASSERT_TRUE(NormalizeWork(executor, work, params, x, &y).ok());
  Tensor alone(DType::kFloat32, x.count());
  for (std::int64_t i = 0; i < work.samples; ++i) {
    const std::size_t at = static_cast<std::size_t>(i) * x.bytes() / 10;
    const Segment segment{static_cast<const char*>(x.data()) + at,
                          static_cast<char*>(alone.data()) + at, 1, work.spatial};
    ASSERT_TRUE(executor.Normalize(work.spec, params.View(), &segment, 1).ok());
  }
  EXPECT_TRUE(alone.SameBytes(y));
  const Segment in_place{x.data(), x.data(), work.samples, work.spatial};
  ASSERT_TRUE(executor.Normalize(work.spec, params.View(), &in_place, 1).ok());
  EXPECT_TRUE(x.SameBytes(y));
  EXPECT_TRUE(x.GuardsIntact());
}

TEST(CpuExecutorTest, GivesTheSameBitsForAnInputAtAnyByte) {
  const cpu::Executor executor(2);
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
    for (const Work& work : AllStrategies(dtype)) {
      SCOPED_TRACE(work.name);
      const ParamSet params(work.spec, DType::kFloat32, TestSeed() + 36);
      const std::int64_t spatial = (work.spatial + 9) / 10;  // A tenth tests as much.
      Tensor x(dtype, work.samples * work.spec.channels * spatial);
      x.Fill(Data::kUniform, TestSeed() + 37);
      std::memset(x.data(), 0xFF, SizeOf(dtype));  // A NaN takes its row the slow way.
      Tensor expected(dtype, x.count());
      Segment segment{x.data(), expected.data(), work.samples, spatial};
      ASSERT_TRUE(executor.Normalize(work.spec, params.View(), &segment, 1).ok());
      std::vector<char> odd(x.bytes() + 1);
      std::memcpy(odd.data() + 1, x.data(), x.bytes());
      Tensor y(dtype, x.count());
      y.Poison();
      segment.x = odd.data() + 1;
      segment.y = y.data();
      ASSERT_TRUE(executor.Normalize(work.spec, params.View(), &segment, 1).ok());
      EXPECT_TRUE(y.SameBytes(expected));
    }
  }
}

TEST(CpuExecutorTest, ServesOverlappingCalls) {
  const cpu::Executor executor(2);
  const std::vector<Work> works = AllStrategies(DType::kFloat32);
  std::vector<std::thread> callers;
  std::vector<int> same(works.size(), 0);
  for (std::size_t i = 0; i < works.size(); ++i) {
    callers.emplace_back([&, i] {
      const Work& work = works[i];
      const ParamSet params(work.spec, DType::kFloat16, TestSeed() + 34);
      Tensor x(DType::kFloat32, work.samples * work.spec.channels * work.spatial);
      x.Fill(Data::kUniform, TestSeed() + 35);
      Tensor first(DType::kFloat32, x.count());
      Tensor second(DType::kFloat32, x.count());
      const bool ok = NormalizeWork(executor, work, params, x, &first).ok() &&
                      NormalizeWork(executor, work, params, x, &second).ok();
      same[i] = ok && first.SameBytes(second) ? 1 : 0;
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (std::size_t i = 0; i < works.size(); ++i) EXPECT_EQ(same[i], 1) << works[i].name;
}

TEST(CpuExecutorTest, SaysHowManyThreadsItUses) {
  EXPECT_EQ(cpu::Executor(3).max_threads(), 3);
  EXPECT_GE(cpu::Executor().max_threads(), 1);
  EXPECT_FALSE(std::string(cpu::SimdTargetName()).empty());
}

}  // namespace
}  // namespace normd::norm::testing
