// A row's bits do not depend on its address, its neighbours, the launch or the stream.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tests/kernels/cuda_memory.h"
#include "tests/kernels/cuda_strategies_fixture.h"

namespace normd::norm::cuda {
namespace {

// With SiLU so large a gamma that values lie on both sides of where its formula changes.
void SpreadBeforeSilu(Problem* problem) {
  if (problem->spec.activation != Activation::kSilu) return;
  const DType dtype = problem->params.view.gamma.dtype;
  problem->params.gamma =
      Upload(bench::RandomElements(dtype, problem->spec.channels, 4, 8, kSeed + 5));
  problem->params.view.gamma.data = problem->params.gamma.get();
}

// A row gives the same bits, and stays within its bounds, wherever it begins.
void ExpectSameBitsAtEveryAddress(CudaStrategiesTest* test, const NormSpec& spec,
                                  std::int64_t spatial, Strategy strategy, DType param_dtype) {
  Problem aligned(spec, 6, spatial, 0, param_dtype);
  SpreadBeforeSilu(&aligned);
  ASSERT_TRUE(test->Check(&aligned, strategy));
  EXPECT_TRUE(aligned.GuardsAreUntouched());
  for (const std::int64_t offset : {1, 3}) {
    SCOPED_TRACE(offset);
    Problem unaligned(spec, 6, spatial, offset, param_dtype);
    SpreadBeforeSilu(&unaligned);
    ASSERT_EQ(cudaMemcpy(const_cast<void*>(unaligned.segment.x), aligned.segment.x, aligned.bytes,
                         cudaMemcpyDeviceToDevice),
              cudaSuccess);
    ASSERT_TRUE(test->Check(&unaligned, strategy));
    EXPECT_TRUE(unaligned.GuardsAreUntouched());
    EXPECT_EQ(unaligned.Result(), aligned.Result());
  }
}

// Neighbours in a batch can make a row's address odd.
TEST_F(CudaStrategiesTest, RowsOverSeveralBlocksHaveTheSameBitsAtEveryAddress) {
  for (const DType dtype : kTypes) {
    ExpectSameBitsAtEveryAddress(this, LayerNormSpec(200000, dtype), 1, Strategy::kGrid,
                                 DType::kFloat32);
    ExpectSameBitsAtEveryAddress(this, GroupNormSpec(8, 2, dtype), 50000, Strategy::kGrid,
                                 DType::kFloat32);
    if (dtype == DType::kFloat64 || limits_.resident_clusters[16] == 0) continue;
    ExpectSameBitsAtEveryAddress(this, LayerNormSpec(200000, dtype), 1, Strategy::kCluster,
                                 DType::kFloat32);
    ExpectSameBitsAtEveryAddress(this, GroupNormSpec(8, 2, dtype), 50000, Strategy::kCluster,
                                 DType::kFloat32);
  }
}

// Norms of rows over 64 KiB, ragged and of whole vectors, in one channel or several.
TEST_F(CudaStrategiesTest, NormsOfLongRowsHaveTheSameBitsAtEveryAddress) {
  for (const Statistics statistics :
       {Statistics::kSumOfAbsolutes, Statistics::kRootOfSquares, Statistics::kLargestAbsolute}) {
    for (const DType dtype : kTypes) {
      for (const Strategy strategy : {Strategy::kCluster, Strategy::kGrid, Strategy::kSplit}) {
        if (dtype == DType::kFloat64 && strategy != Strategy::kSplit) continue;
        if (strategy == Strategy::kCluster && limits_.resident_clusters[16] == 0) continue;
        for (const std::int64_t length : {33000, 65536, 200000, 200001}) {
          NormSpec spec = RmsNormSpec(length, dtype);
          spec.statistics = statistics;
          ExpectSameBitsAtEveryAddress(this, spec, 1, strategy, DType::kFloat32);
        }
        NormSpec spec = GroupNormSpec(8, 2, dtype);
        spec.statistics = statistics;
        for (const std::int64_t spatial : {12500, 50000}) {
          ExpectSameBitsAtEveryAddress(this, spec, spatial, strategy, DType::kFloat32);
        }
      }
    }
  }
}

// With gamma and beta of elements, a block of the second pass has the same ones for all rows of a
// group: of whole vectors, on ranges that the rows' ends cut, and of rows that are ragged.
TEST_F(CudaStrategiesTest, RowsInTwoPassesHaveTheSameBitsAtEveryAddress) {
  for (const DType dtype : kTypes) {
    for (const DType param_dtype : {DType::kFloat32, dtype}) {
      for (const std::int64_t length : {8, 16384, 49160, 100003, 200000}) {
        for (const std::int64_t groups : {1, 3}) {
          NormSpec spec = GroupNormSpec(groups * length, groups, dtype);
          ExpectSameBitsAtEveryAddress(this, spec, 1, Strategy::kSplit, param_dtype);
          spec.activation = length == 49160   ? Activation::kSilu
                            : length == 16384 ? Activation::kLeakyRelu
                                              : Activation::kGeluErf;
          ExpectSameBitsAtEveryAddress(this, spec, 1, Strategy::kSplit, param_dtype);
        }
      }
    }
  }
}

TEST_F(CudaStrategiesTest, RowsInTwoPassesNeedNoBeta) {
  for (const DType dtype : kTypes) {
    for (const DType param_dtype : {DType::kFloat32, dtype}) {
      Problem problem(LayerNormSpec(100000, dtype), 40, 1, 0, param_dtype);
      problem.params.view.beta.data = nullptr;
      EXPECT_TRUE(Check(&problem, Strategy::kSplit));
      EXPECT_TRUE(problem.GuardsAreUntouched());
    }
  }
}

// Rows of two channels in a warp's run, of one, of many, and of vectors with two.
TEST_F(CudaStrategiesTest, SiluHasTheSameBitsAtEveryAddressInEveryStrategy) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (const auto& [group_channels, spatial] :
         {std::pair<std::int64_t, std::int64_t>(4, 50000), {1, 200000}, {100, 2048}, {16, 12345}}) {
      NormSpec spec = GroupNormSpec(2 * group_channels, 2, dtype);
      spec.activation = Activation::kSilu;
      for (const Strategy strategy : {Strategy::kCluster, Strategy::kGrid, Strategy::kSplit}) {
        if (strategy == Strategy::kCluster && limits_.resident_clusters[16] == 0) continue;
        ExpectSameBitsAtEveryAddress(this, spec, spatial, strategy, DType::kFloat32);
      }
    }
    for (const std::int64_t spatial : {40, 1024, 4096}) {
      NormSpec spec = GroupNormSpec(8, 2, dtype);
      spec.activation = Activation::kSilu;
      ExpectSameBitsAtEveryAddress(this, spec, spatial, Strategy::kAuto, DType::kFloat32);
    }
  }
}

// Lengths around every number of lanes, vectors and warps that the plan distinguishes.
TEST_F(CudaStrategiesTest, RowsOfEveryLengthHaveTheSameBitsAtEveryAddress) {
  for (const DType dtype : kTypes) {
    const auto vector = static_cast<std::int64_t>(16 / SizeOf(dtype));
    for (const std::int64_t vectors :
         {1, 2, 5, 8, 16, 32, 64, 100, 128, 192, 256, 288, 384, 513, 1024, 1153, 2050, 4096}) {
      for (const std::int64_t more : {-1, 0, 1, 2, 3}) {
        const std::int64_t length = vectors * vector + more;
        if (length < 1 || vectors + more > 4096) continue;
        for (const DType param_dtype : {DType::kFloat32, dtype}) {
          ExpectSameBitsAtEveryAddress(this, LayerNormSpec(length, dtype), 1, Strategy::kAuto,
                                       param_dtype);
        }
        ExpectSameBitsAtEveryAddress(this, InstanceNormSpec(3, dtype), length, Strategy::kAuto,
                                     DType::kFloat32);
        ExpectSameBitsAtEveryAddress(this, GroupNormSpec(6, 2, dtype), (length + 2) / 3,
                                     Strategy::kAuto, DType::kFloat32);
      }
    }
  }
}

// Specs and sizes that meet each strategy that exchanges partial sums.
std::vector<std::unique_ptr<Problem>> ExchangeProblems() {
  std::vector<std::unique_ptr<Problem>> problems;
  problems.push_back(
      std::make_unique<Problem>(InstanceNormSpec(16, DType::kFloat32), 8, 512 * 512));
  problems.push_back(
      std::make_unique<Problem>(GroupNormSpec(64, 8, DType::kFloat32), 2, 512 * 512));
  problems.push_back(std::make_unique<Problem>(LayerNormSpec(65536, DType::kFloat32), 300, 1));
  NormSpec last = GroupNormSpec(512, 32, DType::kFloat16);
  last.layout = Layout::kChannelsLast;
  problems.push_back(std::make_unique<Problem>(last, 4, 128 * 128));
  last = GroupNormSpec(320, 32, DType::kFloat16);
  last.layout = Layout::kChannelsLast;
  problems.push_back(std::make_unique<Problem>(last, 2, 64 * 64));
  return problems;
}

TEST_F(CudaStrategiesTest, AHundredLaunchesGiveTheSameBits) {
  for (const auto& problem : ExchangeProblems()) {
    for (const Strategy strategy : {Strategy::kCluster, Strategy::kGrid, Strategy::kSplit}) {
      // Only some rows have clusters; every other strategy takes all of these.
      if (!Check(problem.get(), strategy)) {
        ASSERT_EQ(strategy, Strategy::kCluster);
        continue;
      }
      const std::vector<char> first = problem->Result();
      for (int i = 0; i < 100; ++i) {
        problem->PoisonY(nullptr);
        ASSERT_TRUE(problem->Normalize(limits_, strategy, nullptr).ok());
        if (i % 20 != 19) continue;
        ASSERT_EQ(problem->Result(), first) << Name(strategy) << " launch " << i;
      }
    }
  }
}

TEST_F(CudaStrategiesTest, SeveralStreamsAtOnceGiveTheBitsOfOneAlone) {
  std::vector<std::unique_ptr<Problem>> problems = ExchangeProblems();
  std::vector<std::vector<char>> alone;
  for (const auto& problem : problems) {
    ASSERT_TRUE(Check(problem.get(), Strategy::kAuto));
    alone.push_back(problem->Result());
    problem->PoisonY(nullptr);
  }
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const std::vector<Stream> streams(problems.size());
  for (int round = 0; round < 25; ++round) {
    for (std::size_t i = 0; i < problems.size(); ++i) {
      ASSERT_TRUE(problems[i]->Normalize(limits_, Strategy::kAuto, streams[i].get()).ok());
    }
  }
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  for (std::size_t i = 0; i < problems.size(); ++i) {
    EXPECT_EQ(problems[i]->Result(), alone[i]) << i;
  }
}

// The sample alone lies between aligned addresses, in the batch at one.
void ExpectSameBitsInEveryBatch(CudaStrategiesTest* test, const NormSpec& spec,
                                std::int64_t spatial, Strategy strategy) {
  constexpr std::size_t kSamples = 9, kSample = 7;
  Problem many(spec, kSamples, spatial);
  ASSERT_TRUE(test->Check(&many, strategy));
  const std::vector<char> batch = many.Result();
  const std::size_t sample = many.bytes / kSamples;
  Problem one(spec, 1, spatial, 1);
  ASSERT_EQ(cudaMemcpy(const_cast<void*>(one.segment.x),
                       static_cast<const char*>(many.segment.x) + kSample * sample, sample,
                       cudaMemcpyDeviceToDevice),
            cudaSuccess);
  ASSERT_TRUE(test->Check(&one, strategy));
  const auto begin = batch.begin() + static_cast<std::ptrdiff_t>(kSample * sample);
  EXPECT_EQ(one.Result(), std::vector<char>(begin, begin + static_cast<std::ptrdiff_t>(sample)));
}

TEST_F(CudaStrategiesTest, ANormOfALongRowHasTheSameBitsInEveryBatch) {
  for (const Statistics statistics :
       {Statistics::kSumOfAbsolutes, Statistics::kRootOfSquares, Statistics::kLargestAbsolute}) {
    for (const DType dtype : kTypes) {
      for (const std::int64_t length : {33000, 70001, 270000, 2000000, 4700000}) {
        NormSpec spec = RmsNormSpec(length, dtype);
        spec.statistics = statistics;
        ExpectSameBitsInEveryBatch(this, spec, 1, Strategy::kAuto);
      }
    }
  }
}

TEST_F(CudaStrategiesTest, AChannelsLastSampleHasTheSameBitsInEveryBatch) {
  for (const std::int64_t spatial : {77, 4096, 16384}) {
    NormSpec spec = GroupNormSpec(320, 32, DType::kFloat16);
    spec.layout = Layout::kChannelsLast;
    ExpectSameBitsInEveryBatch(this, spec, spatial, Strategy::kAuto);
  }
}

TEST_F(CudaStrategiesTest, AChannelsLastSampleThatIsReadTwiceHasTheSameBitsInEveryBatch) {
  for (const DType dtype : kTypes) {
    for (const std::int64_t group_channels : {1, 2, 4, 16}) {
      for (const std::int64_t spatial : {77, 2048, 9001}) {
        NormSpec spec = GroupNormSpec(32 * group_channels, 32, dtype);
        spec.layout = Layout::kChannelsLast;
        spec.activation = Activation::kSilu;
        ExpectSameBitsInEveryBatch(this, spec, spatial, Strategy::kSplit);
      }
    }
  }
}

// A launch of few rows asks for gamma and beta ahead of the row's statistics, one of many does not.
TEST_F(CudaStrategiesTest, ARowHasTheSameBitsAloneAndInACrowd) {
  constexpr std::int64_t kCrowdBytes = std::int64_t{16} << 20;
  constexpr std::size_t kRow = 7;
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
    for (const std::int64_t length : {256, 768, 1024, 4096, 8192}) {
      for (const DType param_dtype : {dtype, DType::kFloat32}) {
        for (const NormSpec& spec : {LayerNormSpec(length, dtype), RmsNormSpec(length, dtype)}) {
          SCOPED_TRACE(::testing::Message() << Name(dtype) << " row of " << length);
          const std::size_t row = static_cast<std::size_t>(length) * SizeOf(dtype);
          Problem many(spec, kCrowdBytes / static_cast<std::int64_t>(row), 1, 0, param_dtype);
          ASSERT_TRUE(many.Normalize(limits_, Strategy::kAuto, nullptr).ok());
          Problem one(spec, 1, 1, 0, param_dtype);
          ASSERT_EQ(cudaMemcpy(const_cast<void*>(one.segment.x),
                               static_cast<const char*>(many.segment.x) + kRow * row, row,
                               cudaMemcpyDeviceToDevice),
                    cudaSuccess);
          ASSERT_TRUE(Check(&one, Strategy::kAuto));
          const std::vector<char> crowd = many.Result();
          EXPECT_EQ(one.Result(), std::vector<char>(crowd.begin() + kRow * row,
                                                    crowd.begin() + (kRow + 1) * row));
        }
      }
    }
  }
}

// Rows whose parameters do not stay in shared memory.
TEST_F(CudaStrategiesTest, ALongRowHasTheSameBitsAmongAnyNumber) {
  constexpr std::int64_t kMostRows = 5;
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (const std::int64_t kib : {6000, 11111, 16384}) {
      for (const DType param_dtype : {dtype, DType::kFloat32}) {
        NormSpec spec = LayerNormSpec(kib * 1024 / static_cast<std::int64_t>(SizeOf(dtype)), dtype);
        if (kib == 11111) spec.activation = Activation::kGeluTanh;
        SCOPED_TRACE(::testing::Message() << Name(dtype) << " rows of " << kib << " KiB");
        Problem all(spec, kMostRows, 1, 0, param_dtype);
        ASSERT_TRUE(Check(&all, Strategy::kAuto));
        const std::vector<char> expected = all.Result();
        const std::size_t row = all.bytes / kMostRows;
        for (std::int64_t first = 0; first < kMostRows; ++first) {
          const std::int64_t rows = std::min<std::int64_t>(1 + first % 2, kMostRows - first);
          Problem some(spec, rows, 1, 0, param_dtype);
          ASSERT_EQ(cudaMemcpy(const_cast<void*>(some.segment.x),
                               static_cast<const char*>(all.segment.x) + first * row, some.bytes,
                               cudaMemcpyDeviceToDevice),
                    cudaSuccess);
          some.PoisonY(nullptr);
          ASSERT_TRUE(some.Normalize(limits_, Strategy::kAuto, nullptr).ok());
          EXPECT_EQ(some.Result(), std::vector<char>(expected.begin() + first * row,
                                                     expected.begin() + first * row + some.bytes))
              << rows << " rows from " << first << " on";
        }
      }
    }
  }
}

// Launches overlap the end of their predecessors, so each must wait for what it reads.
TEST_F(CudaStrategiesTest, EachLaunchSeesWhatTheOneBeforeWrote) {
  std::vector<std::unique_ptr<Problem>> problems;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const std::int64_t samples : {1, 300, 3000}) {
      problems.push_back(std::make_unique<Problem>(RmsNormSpec(4096, dtype), samples, 1));
      problems.push_back(std::make_unique<Problem>(LayerNormSpec(512, dtype), samples, 1));
    }
    NormSpec batch_norm = BatchNormSpec(64, dtype);
    problems.push_back(std::make_unique<Problem>(batch_norm, 8, 56 * 56));
    batch_norm.layout = Layout::kChannelsLast;
    problems.push_back(std::make_unique<Problem>(batch_norm, 8, 56 * 56));
  }
  const Stream stream;
  for (const auto& problem : problems) {
    const auto run = [&](bool waits) {
      // From x to y, then on in place.
      const void* const x = problem->segment.x;
      for (int i = 0; i < 12; ++i) {
        EXPECT_TRUE(problem->Normalize(limits_, Strategy::kAuto, stream.get()).ok());
        problem->segment.x = problem->segment.y;
        if (waits) {
          EXPECT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
        }
      }
      problem->segment.x = x;
      EXPECT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
      return problem->Result();
    };
    const std::vector<char> expected = run(true);
    for (int round = 0; round < 5; ++round) {
      problem->PoisonY(stream.get());
      ASSERT_EQ(run(false), expected)
          << Name(problem->spec.dtype) << ", channels " << problem->spec.channels;
    }
  }
}

}  // namespace
}  // namespace normd::norm::cuda
