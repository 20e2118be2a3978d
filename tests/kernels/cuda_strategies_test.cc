// Every strategy forced, and tensors of more than 2^31 elements, agree with float64.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "tests/kernels/cuda_memory.h"
#include "tests/kernels/cuda_strategies_fixture.h"

namespace normd::norm::cuda {
namespace {

constexpr Strategy kRowStrategies[] = {Strategy::kWarp, Strategy::kBlock, Strategy::kCluster,
                                       Strategy::kGrid, Strategy::kSplit};

TEST_F(CudaStrategiesTest, EveryRowStrategyAgreesWithReferenceWhereItApplies) {
  for (const Strategy strategy : kRowStrategies) {
    int checked = 0, problems = 0;
    for (const DType dtype : kTypes) {
      for (const std::int64_t length : {1, 33, 1000, 1024, 1027, 8192, 32771, 262144, 1048579}) {
        Problem layer(LayerNormSpec(length, dtype), 5, 1);
        checked += Check(&layer, strategy);
        Problem group(GroupNormSpec(8, 2, dtype), 3, (length + 3) / 4, 1);
        checked += Check(&group, strategy);
        problems += 2;
      }
    }
    // The last two take any of these rows; not every device has clusters.
    if (strategy != Strategy::kCluster || limits_.resident_clusters[2] > 0) {
      EXPECT_GT(checked, 0) << Name(strategy);
    }
    if (strategy == Strategy::kGrid || strategy == Strategy::kSplit) {
      EXPECT_EQ(checked, problems) << Name(strategy);
    }
  }
}

// Rows enough that every team takes several, the last ones from the work counter; each block's
// slice is cut differently, some blocks get a part of a slice or nothing.
TEST_F(CudaStrategiesTest, ManyRowsOverManyBlocksAgreeWithReference) {
  for (const DType dtype : kTypes) {
    for (const std::int64_t kib : {96, 160, 515, 1024, 8192, 15000}) {
      const std::int64_t length = kib * 1024 / static_cast<std::int64_t>(SizeOf(dtype));
      const std::int64_t rows = 200 * 1024 / kib + 3;
      for (const std::int64_t odd : {0, 1}) {
        Problem layer(LayerNormSpec(length + odd, dtype), rows, 1, odd);
        EXPECT_TRUE(Check(&layer, Strategy::kGrid));
        NormSpec spec = GroupNormSpec(8, 2, dtype);
        spec.activation = Activation::kSilu;
        Problem group(spec, (rows + 1) / 2, length / 4 + odd, odd);
        EXPECT_TRUE(Check(&group, Strategy::kGrid));
      }
    }
  }
}

// Rows of one kind of parameters, up to those of one team over all multiprocessors.
TEST_F(CudaStrategiesTest, ManyAlignedRowsOfMegabytesAgreeWithReference) {
  for (const DType dtype : kTypes) {
    for (const std::int64_t spatial : {100000, 400000}) {
      Problem group(GroupNormSpec(8, 2, dtype), 35, spatial);
      EXPECT_TRUE(Check(&group, Strategy::kGrid));
    }
  }
}

// Every team takes several rows, the last ones from the work counter; teams of all sizes, runs of a
// part of a chunk, rows between alignments.
TEST_F(CudaStrategiesTest, ManyRowsOverClustersAgreeWithReference) {
  if (limits_.resident_clusters[2] == 0) GTEST_SKIP() << "no clusters";
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (const std::int64_t kib : {40, 72, 100, 128, 200, 300, 512, 700, 1024}) {
      const std::int64_t length = kib * 1024 / static_cast<std::int64_t>(SizeOf(dtype));
      const std::int64_t rows = 60 * 1024 / kib + 3;
      for (const std::int64_t odd : {0, 1}) {
        NormSpec spec = InstanceNormSpec(1, dtype);
        Problem instance(spec, rows, length - odd, odd);
        EXPECT_TRUE(Check(&instance, Strategy::kCluster));
        spec = GroupNormSpec(8, 2, dtype);
        spec.activation = odd ? Activation::kGeluTanh : Activation::kSilu;
        Problem group(spec, (rows + 1) / 2, length / 4 - odd, odd);
        EXPECT_TRUE(Check(&group, Strategy::kCluster));
        Problem layer(LayerNormSpec(length - odd, dtype), rows, 1, odd);
        const bool params_fit = dtype == DType::kFloat32 || kib <= 700;
        EXPECT_EQ(Check(&layer, Strategy::kCluster), params_fit) << kib << " KiB";
      }
    }
  }
}

constexpr Statistics kNorms[] = {Statistics::kSumOfAbsolutes, Statistics::kRootOfSquares,
                                 Statistics::kLargestAbsolute};

NormSpec NormOf(Statistics statistics, NormSpec spec) {
  spec.statistics = statistics;
  return spec;
}

// An element that a sum leaves out or takes twice is the row's outlier in one of the rows. Lengths
// around those at which the strategies change, and chunks, runs and slices end.
TEST_F(CudaStrategiesTest, NormsOfLongRowsAgreeWithReferenceInEveryStrategy) {
  int problems = 0, over_clusters = 0;
  for (const DType dtype : kTypes) {
    const auto size = static_cast<std::int64_t>(SizeOf(dtype));
    for (const std::int64_t kib : {64, 72, 128, 256, 515, 1024, 8192}) {
      const std::int64_t rows = kib > 1024 ? 3 : 20 * 1024 / kib + 3;
      for (const std::int64_t beside : {-1, 1, 2, 16, 1023}) {
        const std::int64_t length = kib * 1024 / size + beside;
        if (length * size <= 64 << 10) continue;
        for (const Statistics statistics : kNorms) {
          Problem problem(NormOf(statistics, RmsNormSpec(length, dtype)), rows, 1, beside & 1);
          problem.PlantOutliers();
          EXPECT_TRUE(Check(&problem, Strategy::kAuto));
          EXPECT_EQ(Check(&problem, Strategy::kGrid), dtype != DType::kFloat64);
          EXPECT_TRUE(Check(&problem, Strategy::kSplit));
          over_clusters += Check(&problem, Strategy::kCluster);
          EXPECT_TRUE(problem.GuardsAreUntouched());
          ++problems;
        }
      }
    }
  }
  if (limits_.resident_clusters[16] > 0) {
    EXPECT_GT(over_clusters, problems / 2);
  }
}

TEST_F(CudaStrategiesTest, NormsOfSamplesOfSeveralChannelsAgreeWithReference) {
  for (const DType dtype : kTypes) {
    for (const Statistics statistics : kNorms) {
      for (const std::int64_t spatial : {12500, 12501, 400000}) {
        Problem problem(NormOf(statistics, GroupNormSpec(8, 2, dtype)), 35, spatial, spatial % 2);
        problem.PlantOutliers();
        EXPECT_TRUE(Check(&problem, Strategy::kAuto));
        EXPECT_TRUE(problem.GuardsAreUntouched());
      }
    }
  }
}

TEST_F(CudaStrategiesTest, NormOfOneRowOfTheWholeTensorAgreesWithReference) {
  for (const DType dtype : kTypes) {
    for (const Statistics statistics : kNorms) {
      for (const std::int64_t length : {(1 << 25) - 5, 1 << 25}) {
        Problem problem(NormOf(statistics, RmsNormSpec(length, dtype)), 1, 1);
        problem.PlantOutliers();
        EXPECT_TRUE(Check(&problem, Strategy::kAuto));
      }
    }
  }
}

TEST_F(CudaStrategiesTest, ActivationsFollowParametersOfElementsInEveryStrategy) {
  for (const Strategy strategy : kRowStrategies) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      for (const Activation activation : {Activation::kRelu, Activation::kSilu}) {
        NormSpec spec = LayerNormSpec(strategy == Strategy::kWarp ? 256 : 16384, dtype);
        spec.activation = activation;
        Problem problem(spec, 5, 1);
        if (Check(&problem, strategy)) continue;
        EXPECT_EQ(strategy, Strategy::kCluster);
        EXPECT_EQ(limits_.resident_clusters[2], 0);
      }
    }
  }
}

// Over clusters and over the grid each activation has code of its own.
TEST_F(CudaStrategiesTest, EveryActivationFollowsRowsOverSeveralBlocks) {
  for (const Activation activation : {Activation::kRelu, Activation::kLeakyRelu, Activation::kSilu,
                                      Activation::kGeluErf, Activation::kGeluTanh}) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      for (const Strategy strategy : {Strategy::kCluster, Strategy::kGrid}) {
        if (strategy == Strategy::kCluster && limits_.resident_clusters[4] == 0) continue;
        NormSpec group = GroupNormSpec(8, 2, dtype);
        group.activation = activation;
        Problem channels(group, 9, 10000);
        EXPECT_TRUE(Check(&channels, strategy));
        for (const std::int64_t length : {40000, 40001}) {
          NormSpec layer = LayerNormSpec(length, dtype);
          layer.activation = activation;
          for (const DType param_dtype : {DType::kFloat32, dtype}) {
            Problem elements(layer, 67, 1, 0, param_dtype);
            EXPECT_TRUE(Check(&elements, strategy));
            EXPECT_TRUE(elements.GuardsAreUntouched());
          }
        }
      }
    }
  }
}

// Gamma and beta of ragged rows stay in shared memory: no beta, slices of every length, the last
// one of a few words.
TEST_F(CudaStrategiesTest, RaggedRowsOverClustersAgreeWithReference) {
  if (limits_.resident_clusters[16] == 0) GTEST_SKIP() << "no clusters of 16 blocks";
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    const auto vector = static_cast<std::int64_t>(16 / SizeOf(dtype));
    for (const std::int64_t vectors : {4096, 4097, 5120, 8192, 8193, 16385, 30001, 49151}) {
      for (const std::int64_t more : {1, 2, 3}) {
        Problem layer(LayerNormSpec(vectors * vector + more, dtype), 70, 1, more - 1, dtype);
        if (more == 2) layer.params.view.beta = ParamVector();
        EXPECT_TRUE(Check(&layer, Strategy::kCluster));
        EXPECT_TRUE(layer.GuardsAreUntouched());
      }
    }
  }
}

// Kernels begin before the ones in front of them have ended: each normalizes what the one before
// wrote, over what the one before that read.
TEST_F(CudaStrategiesTest, SmallLaunchesSeeWhatTheOnesBeforeWrote) {
  struct {
    NormSpec spec;
    std::int64_t samples;
    std::int64_t spatial;
  } const kinds[] = {{LayerNormSpec(256, DType::kBFloat16), 256, 1},
                     {RmsNormSpec(4096, DType::kBFloat16), 16, 1},
                     {BatchNormSpec(64, DType::kBFloat16), 8, 128},
                     {InstanceNormSpec(32, DType::kBFloat16), 2, 1024},
                     {LayerNormSpec(65536, DType::kBFloat16), 1, 1},
                     {GroupNormSpec(8, 2, DType::kBFloat16), 1, 8192}};
  std::vector<std::unique_ptr<Problem>> problems;
  for (const auto& kind : kinds) {
    problems.push_back(std::make_unique<Problem>(kind.spec, kind.samples, kind.spatial));
  }
  const std::size_t bytes = problems[0]->bytes;
  const void* const first = problems[0]->segment.x;
  const Buffer buffers[] = {Allocate(bytes), Allocate(bytes), Allocate(bytes)};
  std::vector<char> results[2];
  for (const bool one_by_one : {true, false}) {
    ASSERT_EQ(cudaMemcpy(buffers[0].get(), first, bytes, cudaMemcpyDeviceToDevice), cudaSuccess);
    for (std::size_t i = 0; i < 600; ++i) {
      Problem& problem = *problems[(i * i + i / 7) % problems.size()];
      ASSERT_EQ(problem.bytes, bytes);
      problem.segment.x = buffers[i % 3].get();
      problem.segment.y = buffers[(i + 1) % 3].get();
      ASSERT_TRUE(problem.Normalize(limits_, Strategy::kAuto, nullptr).ok());
      if (one_by_one) {
        ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      }
    }
    results[one_by_one].resize(bytes);
    ASSERT_EQ(
        cudaMemcpy(results[one_by_one].data(), buffers[0].get(), bytes, cudaMemcpyDeviceToHost),
        cudaSuccess);
  }
  EXPECT_EQ(results[0], results[1]);
}

// Segments whose rows differ in length, but not in their plan, share a launch.
void CheckDifferentLengths(const DeviceLimits& limits, Strategy strategy) {
  const NormSpec spec = InstanceNormSpec(8, DType::kFloat32);
  std::vector<std::unique_ptr<Problem>> problems;
  std::vector<Segment> segments;
  Plan plan;
  for (const std::int64_t spatial : {262144, 262140, 262080, 261001, 262143, 261120}) {
    problems.push_back(std::make_unique<Problem>(spec, 7, spatial));
    segments.push_back(problems.back()->segment);
    Plan own;
    ASSERT_TRUE(MakePlan(spec, spatial, limits, strategy, &own).ok());
    if (segments.size() > 1) {
      ASSERT_EQ(own, plan) << spatial;
    }
    plan = own;
    problems.back()->PoisonY(nullptr);
  }
  const std::size_t bytes =
      WorkspaceBytes(spec, segments.data(), segments.size(), limits, strategy);
  const Buffer workspace = Allocate(bytes);
  ASSERT_TRUE(InitWorkspace(workspace.get(), bytes, nullptr).ok());
  LaunchOptions options;
  options.workspace = workspace.get();
  options.workspace_bytes = bytes;
  options.forced = strategy;
  ASSERT_TRUE(
      Normalize(spec, problems[0]->params.view, segments.data(), segments.size(), limits, options)
          .ok());
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  for (const auto& problem : problems) {
    EXPECT_LE(problem->MaxError(), Tolerance(DType::kFloat32)) << problem->segment.spatial;
  }
}

TEST_F(CudaStrategiesTest, RowsOfDifferentLengthsInOneLaunchAgreeWithReference) {
  CheckDifferentLengths(limits_, Strategy::kGrid);
}

TEST_F(CudaStrategiesTest, RowsOfDifferentLengthsInOneClusterLaunchAgreeWithReference) {
  if (limits_.resident_clusters[16] == 0) GTEST_SKIP() << "no clusters of 16 blocks";
  CheckDifferentLengths(limits_, Strategy::kCluster);
}

TEST_F(CudaStrategiesTest, EveryChannelsLastStrategyAgreesWithReferenceWhereItApplies) {
  struct Shape {
    std::int64_t channels, groups, spatial;
  };
  for (const Strategy strategy : {Strategy::kCluster, Strategy::kGrid, Strategy::kSplit}) {
    int checked = 0;
    for (const DType dtype : kTypes) {
      for (const Shape& shape :
           {Shape{64, 8, 1024}, Shape{320, 32, 1025}, Shape{63, 63, 517}, Shape{30, 3, 4099},
            Shape{512, 32, 9000}, Shape{6, 6, 20000}, Shape{48, 16, 3}, Shape{2048, 2, 65}}) {
        for (const std::int64_t offset : {0, 1}) {
          NormSpec spec = GroupNormSpec(shape.channels, shape.groups, dtype);
          spec.layout = Layout::kChannelsLast;
          Problem problem(spec, 3, shape.spatial, offset);
          checked += Check(&problem, strategy);
        }
      }
    }
    EXPECT_GT(checked, 0) << Name(strategy);
  }
}

NormSpec ChannelsLastSpec(std::int64_t channels, std::int64_t groups, DType dtype) {
  NormSpec spec = GroupNormSpec(channels, groups, dtype);
  spec.layout = Layout::kChannelsLast;
  return spec;
}

// Columns of one group, of two and of one for each channel; whole vectors and others.
TEST_F(CudaStrategiesTest, EveryActivationFollowsStripsThatAreReadTwice) {
  for (const Activation activation :
       {Activation::kNone, Activation::kRelu, Activation::kLeakyRelu, Activation::kSilu,
        Activation::kGeluErf, Activation::kGeluTanh}) {
    for (const DType dtype : kTypes) {
      for (const std::int64_t group_channels : {1, 2, 4, 6, 16}) {
        for (const std::int64_t offset : {0, 1}) {
          NormSpec spec = ChannelsLastSpec(32 * group_channels, 32, dtype);
          spec.activation = activation;
          Problem problem(spec, 2, 3001, offset, dtype);
          EXPECT_TRUE(Check(&problem, Strategy::kSplit));
          EXPECT_TRUE(problem.GuardsAreUntouched());
        }
      }
    }
  }
}

// Tiles of more vectors to a thread than are summed at once, and more tiles than threads merge.
TEST_F(CudaStrategiesTest, StripsOfManyTilesAgreeWithReference) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16}) {
    for (const std::int64_t groups : {129, 258}) {
      for (const std::int64_t spatial : {16, 17, 4096 * 16, 4096 * 16 + 5, 4096 * 17 + 1}) {
        Problem problem(ChannelsLastSpec(1032, groups, dtype), 1, spatial);
        EXPECT_TRUE(Check(&problem, Strategy::kSplit));
      }
    }
  }
  // As many tiles of a sample as there may be, and positions that would make one more.
  for (const std::int64_t spatial : {4096 * 16, 4097 * 16, 4097 * 16 + 1}) {
    Problem problem(ChannelsLastSpec(2048, 1, DType::kFloat16), 1, spatial);
    EXPECT_TRUE(Check(&problem, Strategy::kSplit));
  }
}

TEST_F(CudaStrategiesTest, TensorsOfMoreThanTwoToThe31ElementsAgreeWithReference) {
  std::size_t free_bytes = 0, total_bytes = 0;
  ASSERT_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
  if (free_bytes < (std::size_t{12} << 30)) GTEST_SKIP() << "needs 12 GiB of device memory";
  constexpr std::int64_t kSamples = 140;  // x 64 x 512 x 512 elements.
  for (const Layout layout : {Layout::kChannelsFirst, Layout::kChannelsLast}) {
    for (NormSpec spec : {InstanceNormSpec(64, DType::kFloat16), BatchNormSpec(64, DType::kFloat16),
                          GroupNormSpec(64, 8, DType::kFloat16)}) {
      spec.layout = layout;
      Problem problem(spec, kSamples, 512 * 512);
      EXPECT_TRUE(Check(&problem, Strategy::kAuto));
    }
  }
  // One row of more elements than 32 bits count.
  Problem row(LayerNormSpec((std::int64_t{1} << 31) + 5, DType::kFloat16), 1, 1);
  EXPECT_TRUE(Check(&row, Strategy::kAuto));
}

}  // namespace
}  // namespace normd::norm::cuda
