// The choice of the strategy, on devices that need not be there.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/cuda/plan.h"
#include "kernels/cuda/rows/row_plan.h"

namespace normd::norm::cuda {
namespace {

using ::testing::HasSubstr;

constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16};
constexpr Strategy kRowStrategies[] = {Strategy::kWarp, Strategy::kBlock, Strategy::kCluster,
                                       Strategy::kGrid, Strategy::kSplit};

DeviceLimits Device(int compute_capability, int multiprocessors, std::size_t shared_kib,
                    int largest_cluster) {
  DeviceLimits limits;
  limits.compute_capability = compute_capability;
  limits.multiprocessors = multiprocessors;
  limits.shared_bytes_per_block = shared_kib << 10;
  limits.l2_bytes = std::size_t{50} << 20;
  limits.cooperative_launch = true;
  for (int blocks = 2; blocks <= largest_cluster; ++blocks) {
    limits.resident_clusters[blocks] = multiprocessors / blocks - (blocks > 8 ? 1 : 0);
  }
  return limits;
}

DeviceLimits Turing() { return Device(75, 40, 64, 1); }
DeviceLimits Ampere() { return Device(80, 108, 163, 1); }
DeviceLimits Ada() { return Device(89, 128, 99, 1); }
DeviceLimits Hopper() { return Device(90, 132, 227, 16); }
DeviceLimits DataCenterBlackwell() { return Device(100, 148, 227, 16); }
DeviceLimits Blackwell() { return Device(120, 170, 99, 8); }

std::vector<DeviceLimits> Devices() {
  return {Turing(), Ampere(), Ada(), Hopper(), DataCenterBlackwell(), Blackwell()};
}

// Lengths around every power of two up to 2^33 elements.
std::vector<std::int64_t> Lengths() {
  std::vector<std::int64_t> lengths;
  for (std::int64_t power = 1; power <= (std::int64_t{1} << 33); power *= 2) {
    for (std::int64_t length : {power - 1, power, power + 1, power + power / 2}) {
      if (length > 0) lengths.push_back(length);
    }
  }
  std::sort(lengths.begin(), lengths.end());
  return lengths;
}

Plan PlanFor(const NormSpec& spec, std::int64_t spatial, const DeviceLimits& limits,
             Strategy forced = Strategy::kAuto) {
  Plan plan;
  const Status status = MakePlan(spec, spatial, limits, forced, &plan);
  EXPECT_TRUE(status.ok()) << status.message();
  return plan;
}

// Bytes of a row that the plan's blocks hold; the split holds any.
std::int64_t Capacity(const Plan& plan) {
  if (plan.strategy == Strategy::kWarp) return std::int64_t{plan.lanes_per_row} * plan.vectors * 16;
  return std::int64_t{plan.blocks_per_row} * plan.warps * 32 * plan.vectors * 16;
}

TEST(PlanTest, EveryRowHasPlanThatHoldsIt) {
  for (const DeviceLimits& limits : Devices()) {
    for (DType dtype : kTypes) {
      for (std::int64_t length : Lengths()) {
        const Plan plan = PlanFor(LayerNormSpec(length, dtype), 1, limits);
        if (plan.strategy == Strategy::kSplit) continue;
        EXPECT_GE(Capacity(plan), length * static_cast<std::int64_t>(SizeOf(dtype)))
            << length << " on " << limits.compute_capability << ": " << Describe(plan);
      }
    }
  }
}

TEST(PlanTest, PlansKeepToDevice) {
  for (const DeviceLimits& limits : Devices()) {
    for (DType dtype : kTypes) {
      for (std::int64_t length : Lengths()) {
        for (Strategy forced : kRowStrategies) {
          Plan plan;
          if (!MakePlan(LayerNormSpec(length, dtype), 1, limits, forced, &plan).ok()) continue;
          SCOPED_TRACE(Describe(plan));
          EXPECT_EQ(plan.strategy, forced);
          EXPECT_LE(plan.warps, forced == Strategy::kBlock     ? kBlockMaxWarps
                                : forced == Strategy::kCluster ? kClusterWarps / kClusterTeams
                                                               : kGridWarps);
          EXPECT_LE(plan.blocks_per_row, std::min(limits.multiprocessors, kMaxRowBlocks));
          if (forced == Strategy::kCluster) {
            EXPECT_GT(limits.resident_clusters[plan.blocks_per_row], 0);
            EXPECT_LE(plan.vectors, kClusterVectors);
            const std::size_t slice = std::size_t{16} * 32 * plan.warps * plan.vectors;
            EXPECT_LE(2 * slice / SizeOf(dtype) * 4 + ClusterSlotBytes(plan.blocks_per_row) +
                          kReservedSharedBytes,
                      limits.shared_bytes_per_block);
          }
          if (forced == Strategy::kGrid) {
            EXPECT_LE(plan.vectors, kGridVectors);
            // With any parameters, a whole row and a part of another land at once.
            for (const int param_bytes : {0, 32 * 16 * plan.vectors, 128 * 16 * plan.vectors}) {
              for (const bool aligned : {false, true}) {
                const GridMemory memory =
                    DivideGridMemory(limits, plan.vectors, aligned, param_bytes);
                EXPECT_GT(memory.slots * kChunkVectors, plan.vectors);
                EXPECT_LE(memory.bytes + kReservedSharedBytes, limits.shared_bytes_per_block);
              }
            }
          }
        }
      }
    }
  }
}

TEST(PlanTest, LongerRowsNeverGetSmallerStrategy) {
  for (const DeviceLimits& limits : Devices()) {
    for (DType dtype : kTypes) {
      Strategy last_of[2] = {Strategy::kWarp, Strategy::kWarp};  // Whole vectors, ragged.
      for (std::int64_t length : Lengths()) {
        Strategy& last = last_of[length * static_cast<std::int64_t>(SizeOf(dtype)) % 16 != 0];
        const Strategy strategy = PlanFor(LayerNormSpec(length, dtype), 1, limits).strategy;
        EXPECT_GE(static_cast<int>(strategy), static_cast<int>(last))
            << length << " on " << limits.compute_capability;
        last = strategy;
      }
    }
  }
}

TEST(PlanTest, StrategyChangesWhereRowOutgrowsIt) {
  const auto strategy = [](std::int64_t float32_elements) {
    return PlanFor(LayerNormSpec(float32_elements, DType::kFloat32), 1, Hopper()).strategy;
  };
  EXPECT_EQ(strategy(512), Strategy::kWarp);  // 2 KiB
  EXPECT_EQ(strategy(513), Strategy::kBlock);
  EXPECT_EQ(strategy(16384), Strategy::kBlock);  // 64 KiB
  EXPECT_EQ(strategy(16388), Strategy::kCluster);
  EXPECT_EQ(strategy(16385), Strategy::kCluster);   // Ragged.
  EXPECT_EQ(strategy(262144), Strategy::kCluster);  // 1 MiB
  EXPECT_EQ(strategy(262145), Strategy::kGrid);
  EXPECT_EQ(strategy(132 * 33792), Strategy::kGrid);  // 132 KiB on every multiprocessor
  EXPECT_EQ(strategy(132 * 33792 + 1), Strategy::kSplit);
}

PresentParams Params(DType rows, DType gamma, bool beta = true) {
  NormParams params;
  static const double anything = 0;
  params.gamma = {&anything, gamma};
  if (beta) params.beta = params.gamma;
  return PresentParams::Of(params, rows);
}

Strategy StrategyWith(const NormSpec& spec, std::int64_t spatial, const PresentParams& params,
                      const DeviceLimits& limits = Hopper()) {
  Plan plan;
  EXPECT_TRUE(MakePlan(spec, spatial, params, limits, Strategy::kAuto, &plan).ok());
  return plan.strategy;
}

// A norm without parameters has room for rows where others keep their parameters.
TEST(PlanTest, NormsOfLongRowsTakeClustersTheGridOrTwoPasses) {
  for (const Statistics statistics :
       {Statistics::kSumOfAbsolutes, Statistics::kRootOfSquares, Statistics::kLargestAbsolute}) {
    for (const DType dtype : kTypes) {
      const auto size = static_cast<std::int64_t>(SizeOf(dtype));
      const auto strategy = [&](std::int64_t bytes, std::int64_t odd, const DeviceLimits& limits) {
        NormSpec spec = RmsNormSpec(bytes / size + odd, dtype);
        spec.statistics = statistics;
        const Strategy rows = StrategyWith(spec, 1, PresentParams(), limits);
        // One sample of several channels.
        if (spec.channels % 2 == 0) {
          NormSpec sample = GroupNormSpec(2, 1, dtype);
          sample.statistics = statistics;
          EXPECT_EQ(StrategyWith(sample, spec.channels / 2, PresentParams(), limits), rows);
        }
        return rows;
      };
      const std::int64_t kib = 1 << 10, grid = 132 * 132 * kib;
      const bool wide = dtype == DType::kFloat64;
      const Strategy in_cluster = wide ? Strategy::kSplit : Strategy::kCluster;
      const Strategy in_grid = wide ? Strategy::kSplit : Strategy::kGrid;
      EXPECT_EQ(strategy(64 * kib, 0, Hopper()), Strategy::kStages);
      EXPECT_EQ(strategy(64 * kib, 1, Hopper()), in_cluster);
      EXPECT_EQ(strategy(256 * kib, -1, Hopper()), in_cluster);
      EXPECT_EQ(strategy(1024 * kib, 0, Hopper()), in_cluster);
      EXPECT_EQ(strategy(1024 * kib, 1, Hopper()), in_grid);
      EXPECT_EQ(strategy(grid, 0, Hopper()), in_grid);
      EXPECT_EQ(strategy(grid, 1, Hopper()), Strategy::kSplit);
      EXPECT_EQ(strategy(256 * kib, 0, Ampere()), in_grid);
      EXPECT_EQ(strategy(256 * kib, 0, Turing()), Strategy::kSplit);
    }
  }
}

// Three fifths of an L2 cache of 50 MiB.
TEST(PlanTest, ParametersThatTheCacheDoesNotHoldAreReadOnceForAllRows) {
  const DType f32 = DType::kFloat32, bf16 = DType::kBFloat16;
  const auto of = [](std::int64_t elements, DType rows, const PresentParams& params) {
    return StrategyWith(LayerNormSpec(elements, rows), 1, params);
  };
  const std::int64_t most = (std::int64_t{30} << 20) / 8;
  EXPECT_EQ(of(most, f32, Params(f32, f32)), Strategy::kGrid);
  EXPECT_EQ(of(most + 4, f32, Params(f32, f32)), Strategy::kSplit);
  EXPECT_EQ(of(most + 1, f32, Params(f32, f32)), Strategy::kGrid) << "ragged";
  EXPECT_EQ(of(most + 4, f32, Params(f32, f32, false)), Strategy::kGrid) << "no beta";
  EXPECT_EQ(of(most + 4, f32, PresentParams()), Strategy::kGrid) << "no parameters";
  EXPECT_EQ(of(most + 8, bf16, Params(bf16, f32)), Strategy::kSplit);
  EXPECT_EQ(of(most + 8, bf16, Params(bf16, bf16)), Strategy::kGrid);
  EXPECT_EQ(of(2 * most + 8, bf16, Params(bf16, bf16)), Strategy::kSplit);
  const DType f64 = DType::kFloat64;  // Has no such second pass.
  EXPECT_EQ(of(most / 2, f64, Params(f64, f64)), Strategy::kGrid);
  EXPECT_EQ(of(most / 2 + 4, f64, Params(f64, f64)), Strategy::kGrid);
  // Channels have few parameters.
  EXPECT_EQ(StrategyWith(InstanceNormSpec(4, f32), most + 4, Params(f32, f32)), Strategy::kGrid);
  DeviceLimits unknown = Hopper();
  unknown.l2_bytes = 0;
  EXPECT_EQ(StrategyWith(LayerNormSpec(most + 4, f32), 1, Params(f32, f32), unknown),
            Strategy::kGrid);
}

TEST(PlanTest, NarrowRowsOverTheGridWithActivationsAreReadTwice) {
  for (const DType rows : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (const Activation activation :
         {Activation::kNone, Activation::kRelu, Activation::kLeakyRelu, Activation::kSilu,
          Activation::kGeluErf, Activation::kGeluTanh}) {
      NormSpec spec = LayerNormSpec(1 << 20, rows);
      spec.activation = activation;
      const bool activated = activation != Activation::kNone;
      EXPECT_EQ(StrategyWith(spec, 1, Params(rows, rows)),
                activated && rows != DType::kFloat32 ? Strategy::kSplit : Strategy::kGrid)
          << Name(rows) << ", activation " << static_cast<int>(activation);
      EXPECT_EQ(StrategyWith(spec, 1, PresentParams()), Strategy::kGrid);
    }
  }
}

// Ragged rows of channels have no kernel over clusters that is faster than one block's.
TEST(PlanTest, RaggedRowsTakeClustersForParametersOfElementsAlone) {
  const auto strategy = [](const NormSpec& spec, std::int64_t spatial) {
    return PlanFor(spec, spatial, Hopper()).strategy;
  };
  EXPECT_EQ(strategy(LayerNormSpec(32769, DType::kFloat32), 1), Strategy::kCluster);
  EXPECT_EQ(strategy(LayerNormSpec(65537, DType::kBFloat16), 1), Strategy::kCluster);
  EXPECT_EQ(strategy(InstanceNormSpec(1, DType::kFloat32), 20001), Strategy::kBlock);
  EXPECT_EQ(strategy(InstanceNormSpec(1, DType::kFloat32), 32769), Strategy::kGrid);
}

TEST(PlanTest, ShortRowsTakeFewLanes) {
  const auto shape = [](std::int64_t bfloat16_elements) {
    return Describe(PlanFor(LayerNormSpec(bfloat16_elements, DType::kBFloat16), 1, Hopper()));
  };
  EXPECT_EQ(shape(64), "warp: 8 lanes x 1 vectors");
  EXPECT_EQ(shape(72), "warp: 4 lanes x 4 vectors");
  EXPECT_EQ(shape(128), "warp: 4 lanes x 4 vectors");
  EXPECT_EQ(shape(136), "warp: 8 lanes x 4 vectors");
  EXPECT_EQ(shape(512), "warp: 16 lanes x 4 vectors");
  EXPECT_EQ(shape(520), "warp: 32 lanes x 4 vectors");
  EXPECT_EQ(shape(129), "warp: 32 lanes x 1 vectors");  // Ragged: words.
  EXPECT_EQ(shape(257), "warp: 32 lanes x 2 vectors");
}

TEST(PlanTest, TeamsKeepMultiprocessorsBusy) {
  const auto blocks = [](std::int64_t mib) {
    return PlanFor(InstanceNormSpec(1, DType::kFloat32), mib << 18, Hopper(), Strategy::kGrid)
        .blocks_per_row;
  };
  EXPECT_EQ(blocks(1), 12);  // 11 teams; 8 blocks would hold a row, and leave 4 idle.
  EXPECT_EQ(blocks(8), 65);
  EXPECT_EQ(blocks(16), 130);
}

TEST(PlanTest, RowsAreCutSoThatParametersOfElementsStayOnChip) {
  const Plan layer = PlanFor(LayerNormSpec(1 << 16, DType::kFloat32), 1, Hopper(), Strategy::kGrid);
  EXPECT_TRUE(layer.params_in_shared);
  const int param_bytes = 2 * layer.vectors * 32 * 16;
  EXPECT_EQ(DivideGridMemory(Hopper(), layer.vectors, false, param_bytes).param_bytes, param_bytes);
  EXPECT_FALSE(PlanFor(InstanceNormSpec(4, DType::kFloat32), 1 << 16, Hopper(), Strategy::kGrid)
                   .params_in_shared);
  // Three times 16 MiB are more than all multiprocessors hold.
  EXPECT_FALSE(PlanFor(LayerNormSpec(1 << 22, DType::kFloat32), 1, Hopper()).params_in_shared);
}

TEST(PlanTest, BlocksHaveTheShapeOfWhichEnoughRowsAreResident) {
  const auto shape = [](std::int64_t elements, DType dtype) {
    return Describe(PlanFor(LayerNormSpec(elements, dtype), 1, Hopper()));
  };
  EXPECT_EQ(shape(4096, DType::kFloat32), "block: 8 warps x 4 vectors");
  EXPECT_EQ(shape(4097, DType::kFloat32), "block: 6 warps x 6 vectors");
  EXPECT_EQ(shape(4100, DType::kFloat32), "block: 6 warps x 6 vectors");
  EXPECT_EQ(shape(8192, DType::kFloat32), "block: 8 warps x 8 vectors");
  EXPECT_EQ(shape(16384, DType::kFloat32), "block: 16 warps x 8 vectors");
  EXPECT_EQ(shape(1032, DType::kBFloat16), "block: 1 warps x 6 vectors");
  EXPECT_EQ(shape(2048, DType::kBFloat16), "block: 2 warps x 4 vectors");
  // Ragged rows of 16-bit elements take as many vectors to a lane as leave them resident.
  EXPECT_EQ(shape(4095, DType::kBFloat16), "block: 2 warps x 8 vectors");
  EXPECT_EQ(shape(4097, DType::kBFloat16), "block: 3 warps x 6 vectors");
}

TEST(PlanTest, ClustersAreSmallestWhoseBlocksHoldTwoRows) {
  const auto blocks = [](const NormSpec& spec, std::int64_t spatial = 1) {
    return PlanFor(spec, spatial, Hopper(), Strategy::kCluster).blocks_per_row;
  };
  EXPECT_EQ(blocks(LayerNormSpec(1 << 15, DType::kFloat32)), 2);  // 128 KiB
  EXPECT_EQ(blocks(LayerNormSpec(1 << 16, DType::kFloat32)), 4);
  EXPECT_EQ(blocks(InstanceNormSpec(8, DType::kBFloat16), 1 << 16), 2);
  // Parameters of elements may be float32: those of 32 Ki elements and no more fit into a block.
  EXPECT_EQ(blocks(LayerNormSpec(1 << 16, DType::kBFloat16)), 4);
  EXPECT_EQ(blocks(InstanceNormSpec(8, DType::kFloat32), 1 << 18), 16);
  Plan plan;
  EXPECT_EQ(
      MakePlan(LayerNormSpec(1 << 15, DType::kFloat64), 1, Hopper(), Strategy::kCluster, &plan)
          .code(),
      StatusCode::kUnsupported);
}

// Large clusters leave multiprocessors idle where rows are few.
TEST(PlanTest, LargeClustersTakeRowsWithParametersOfElementsAlone) {
  const auto strategy = [](const NormSpec& spec, std::int64_t spatial) {
    return PlanFor(spec, spatial, Hopper()).strategy;
  };
  EXPECT_EQ(strategy(InstanceNormSpec(8, DType::kFloat32), 1 << 15), Strategy::kCluster);
  EXPECT_EQ(strategy(InstanceNormSpec(8, DType::kFloat32), 1 << 16), Strategy::kGrid);
  EXPECT_EQ(strategy(InstanceNormSpec(8, DType::kFloat32), (1 << 16) - 1), Strategy::kGrid);
  EXPECT_EQ(strategy(LayerNormSpec(1 << 18, DType::kFloat32), 1), Strategy::kCluster);
}

TEST(PlanTest, WithoutClustersBlockHoldsLongerRowsIfTheyDoNotShareParametersElementByElement) {
  const auto strategy = [](std::int64_t float32_elements, const DeviceLimits& limits) {
    return PlanFor(InstanceNormSpec(8, DType::kFloat32), float32_elements, limits).strategy;
  };
  EXPECT_EQ(strategy(32768, Ampere()), Strategy::kBlock);  // 128 KiB
  EXPECT_GT(strategy(32769, Ampere()), Strategy::kBlock);
  EXPECT_EQ(strategy(16384, Hopper()), Strategy::kBlock);
  EXPECT_EQ(strategy(16388, Hopper()), Strategy::kCluster);
}

TEST(PlanTest, EqualRowsOfDifferentTensorsShareStrategy) {
  // 2^18 elements: as a channel, as a group of 16 channels, and with any number of groups.
  for (const DeviceLimits& limits : Devices()) {
    const Plan instance = PlanFor(InstanceNormSpec(3, DType::kFloat32), 1 << 18, limits);
    EXPECT_EQ(PlanFor(InstanceNormSpec(64, DType::kFloat32), 1 << 18, limits), instance);
    EXPECT_EQ(PlanFor(GroupNormSpec(64, 4, DType::kFloat32), 1 << 14, limits), instance);
    EXPECT_EQ(PlanFor(GroupNormSpec(512, 32, DType::kFloat32), 1 << 14, limits), instance);
  }
}

TEST(PlanTest, StatisticsAndActivationDoNotMatter) {
  NormSpec spec = LayerNormSpec(4096, DType::kBFloat16);
  const Plan plain = PlanFor(spec, 1, Hopper());
  spec.statistics = Statistics::kMeanSquare;
  spec.activation = Activation::kSilu;
  EXPECT_EQ(PlanFor(spec, 1, Hopper()), plain);
}

TEST(PlanTest, GivenStatisticsNeedNoRows) {
  EXPECT_EQ(PlanFor(BatchNormSpec(64, DType::kFloat32), 1 << 20, Hopper()).strategy,
            Strategy::kElementwise);
}

TEST(PlanTest, ChannelsLastRowsThatAreContiguousAreRows) {
  NormSpec spec = GroupNormSpec(64, 4, DType::kFloat16);
  spec.layout = Layout::kChannelsLast;
  EXPECT_EQ(PlanFor(spec, 1, Hopper()),
            PlanFor(GroupNormSpec(64, 4, DType::kFloat16), 1, Hopper()));
  EXPECT_EQ(PlanFor(spec, 2, Hopper()).strategy, Strategy::kChannelsLast);
}

TEST(PlanTest, OlderDevicesGetWhatTheyCanRun) {
  const NormSpec spec = LayerNormSpec(4096, DType::kFloat32);
  EXPECT_EQ(PlanFor(spec, 1, Turing()).strategy, Strategy::kBlock);
  EXPECT_EQ(PlanFor(spec, 1, Ampere()).strategy, Strategy::kBlock);
  EXPECT_EQ(PlanFor(LayerNormSpec(1 << 15, DType::kFloat32), 1, Turing()).strategy,
            Strategy::kSplit);
  EXPECT_EQ(PlanFor(LayerNormSpec(1 << 17, DType::kFloat32), 1, Ada()).strategy, Strategy::kGrid);
  DeviceLimits alone = Ampere();
  alone.cooperative_launch = false;
  EXPECT_EQ(PlanFor(LayerNormSpec(1 << 20, DType::kFloat32), 1, alone).strategy, Strategy::kSplit);
}

TEST(PlanTest, ForcedStrategyThatCannotHoldRowIsUnsupported) {
  Plan plan;
  const Status status =
      MakePlan(LayerNormSpec(1 << 20, DType::kFloat32), 1, Hopper(), Strategy::kBlock, &plan);
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(), HasSubstr("block"));
  EXPECT_THAT(status.message(), HasSubstr("1048576 float32"));
  EXPECT_EQ(MakePlan(BatchNormSpec(4, DType::kFloat32), 9, Hopper(), Strategy::kGrid, &plan).code(),
            StatusCode::kUnsupported);
}

TEST(PlanTest, NamesAreParsedBack) {
  for (Strategy strategy :
       {Strategy::kAuto, Strategy::kWarp, Strategy::kBlock, Strategy::kCluster, Strategy::kGrid,
        Strategy::kSplit, Strategy::kChannelsLast, Strategy::kElementwise}) {
    Strategy parsed = Strategy::kAuto;
    EXPECT_TRUE(ParseStrategy(Name(strategy), &parsed).ok());
    EXPECT_EQ(parsed, strategy);
  }
  Strategy strategy = Strategy::kGrid;
  const Status status = ParseStrategy("blok", &strategy);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("'blok'"));
  EXPECT_THAT(status.message(), HasSubstr("cluster"));
  EXPECT_EQ(strategy, Strategy::kGrid);
}

TEST(PlanTest, DescriptionNamesShape) {
  EXPECT_THAT(Describe(PlanFor(LayerNormSpec(1 << 18, DType::kFloat32), 1, Ampere())),
              HasSubstr("grid: "));
  EXPECT_EQ(Describe(PlanFor(LayerNormSpec(1 << 16, DType::kFloat32), 1, Hopper())),
            "cluster: 4 blocks x 8 warps x 16 vectors");
  EXPECT_EQ(Describe(PlanFor(LayerNormSpec(64, DType::kFloat32), 1, Hopper())),
            "warp: 4 lanes x 4 vectors");
}

}  // namespace
}  // namespace normd::norm::cuda
