// What only a GPU can show: every strategy forced, the same bits on every launch and stream, and
// tensors of more than 2^31 elements. Checked in float64 on the device.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "kernels/bench/cuda_reference.h"
#include "kernels/bench/data.h"
#include "kernels/cuda/normalize.h"

namespace normd::norm::cuda {
namespace {

constexpr std::uint64_t kSeed = 20261120;

struct FreeDevice {
  void operator()(void* data) const { cudaFree(data); }
};
using Buffer = std::unique_ptr<void, FreeDevice>;

Buffer Allocate(std::size_t bytes) {
  void* data = nullptr;
  EXPECT_EQ(cudaMalloc(&data, std::max<std::size_t>(bytes, 1)), cudaSuccess) << bytes << " bytes";
  return Buffer(data);
}

Buffer Upload(const std::vector<char>& host) {
  Buffer buffer = Allocate(host.size());
  EXPECT_EQ(cudaMemcpy(buffer.get(), host.data(), host.size(), cudaMemcpyHostToDevice),
            cudaSuccess);
  return buffer;
}

class Stream {
 public:
  Stream() { EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

struct Parameters {
  Parameters(const NormSpec& spec, DType dtype) {
    const bench::HostParams host(spec, dtype, kSeed);
    gamma = Upload(host.gamma);
    beta = Upload(host.beta);
    view.gamma = {gamma.get(), dtype};
    view.beta = {beta.get(), dtype};
    if (spec.statistics != Statistics::kGiven) return;
    mean = Upload(host.mean);
    variance = Upload(host.variance);
    view.mean = {mean.get(), DType::kFloat32};
    view.variance = {variance.get(), DType::kFloat32};
  }
  Buffer gamma, beta, mean, variance;
  NormParams view;
};

// A segment in device memory, `offset` elements past an aligned address, with its own workspace.
struct Problem {
  Problem(const NormSpec& problem_spec, std::int64_t samples, std::int64_t spatial,
          std::int64_t offset = 0, DType param_dtype = DType::kFloat32)
      : spec(problem_spec),
        bytes(static_cast<std::size_t>(samples * spatial * spec.channels) * SizeOf(spec.dtype)),
        shift(static_cast<std::size_t>(offset) * SizeOf(spec.dtype)),
        params(spec, param_dtype) {
    x = Allocate(bytes + shift);
    y = Allocate(bytes + shift + kGuardBytes);
    EXPECT_EQ(cudaMemset(y.get(), kGuard, bytes + shift + kGuardBytes), cudaSuccess);
    segment = {static_cast<char*>(x.get()) + shift, static_cast<char*>(y.get()) + shift, samples,
               spatial};
    const Buffer pool =
        Upload(bench::RandomElements(spec.dtype, bench::kPoolElements, -1, 2, kSeed));
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(bench::FillFromPool(pool.get(), spec.dtype, kSeed, bytes,
                                  const_cast<void*>(segment.x), nullptr),
              cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }

  Status Normalize(const DeviceLimits& limits, Strategy forced, cudaStream_t stream) {
    const std::size_t wanted = WorkspaceBytes(spec, &segment, 1, limits, forced);
    if (wanted > workspace_bytes) {
      workspace = Allocate(wanted);
      workspace_bytes = wanted;
      EXPECT_EQ(cudaMemset(workspace.get(), 0xa5, wanted), cudaSuccess);
      EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      EXPECT_TRUE(InitWorkspace(workspace.get(), wanted, stream).ok());
    }
    LaunchOptions options;
    options.stream = stream;
    options.workspace = workspace.get();
    options.workspace_bytes = workspace_bytes;
    options.forced = forced;
    return cuda::Normalize(spec, params.view, &segment, 1, limits, options);
  }

  void PoisonY(cudaStream_t stream) {
    ASSERT_EQ(cudaMemsetAsync(segment.y, 0xff, bytes, stream), cudaSuccess);
  }

  double MaxError() {
    bench::DeviceError error;
    EXPECT_EQ(bench::MaxErrorOnDevice(spec, params.view, segment, nullptr, &error), cudaSuccess);
    return error.max_error;
  }

  std::vector<char> Result() {
    std::vector<char> host(bytes);
    EXPECT_EQ(cudaMemcpy(host.data(), segment.y, bytes, cudaMemcpyDeviceToHost), cudaSuccess);
    return host;
  }

  // Whether what lies around y is as it was.
  bool GuardsAreUntouched() {
    std::vector<char> around(shift + kGuardBytes);
    const char* const begin = static_cast<const char*>(y.get());
    EXPECT_EQ(cudaMemcpy(around.data(), begin, shift, cudaMemcpyDeviceToHost), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(around.data() + shift, begin + shift + bytes, kGuardBytes,
                         cudaMemcpyDeviceToHost),
              cudaSuccess);
    return around == std::vector<char>(around.size(), kGuard);
  }

  static constexpr std::size_t kGuardBytes = 64;
  static constexpr char kGuard = 0x5a;
  NormSpec spec;
  std::size_t bytes;
  std::size_t shift;
  Parameters params;
  Buffer x, y, workspace;
  std::size_t workspace_bytes = 0;
  Segment segment;
};

double Tolerance(DType dtype) {
  switch (dtype) {
    case DType::kFloat64: return 1e-12;
    case DType::kFloat32: return 3e-6;
    case DType::kFloat16: return 1e-3;
    case DType::kBFloat16: return 8e-3;
  }
  return 0;
}

class CudaStrategiesTest : public ::testing::Test {
 public:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
      GTEST_SKIP() << "no CUDA device";
    }
    ASSERT_TRUE(QueryDeviceLimits(0, &limits_).ok());
  }

  // Poisons y, computes, and checks every element. Returns false if the strategy cannot.
  bool Check(Problem* problem, Strategy forced) {
    Plan plan;
    if (!MakePlan(problem->spec, problem->segment.spatial, limits_, forced, &plan).ok()) {
      return false;
    }
    SCOPED_TRACE(::testing::Message()
                 << Describe(plan) << ", " << Name(problem->spec.dtype) << ", channels "
                 << problem->spec.channels << ", groups " << problem->spec.groups << ", spatial "
                 << problem->segment.spatial);
    problem->PoisonY(nullptr);
    const Status status = problem->Normalize(limits_, forced, nullptr);
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_LE(problem->MaxError(), Tolerance(problem->spec.dtype));
    return true;
  }

  void CheckDifferentLengths(Strategy strategy);

  DeviceLimits limits_;
};

constexpr Strategy kRowStrategies[] = {Strategy::kWarp, Strategy::kBlock, Strategy::kCluster,
                                       Strategy::kGrid, Strategy::kSplit};
constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16};

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

// A row gives the same bits, and stays within its bounds, wherever it begins.
void ExpectSameBitsAtEveryAddress(CudaStrategiesTest* test, const NormSpec& spec,
                                  std::int64_t spatial, Strategy strategy, DType param_dtype) {
  Problem aligned(spec, 6, spatial, 0, param_dtype);
  ASSERT_TRUE(test->Check(&aligned, strategy));
  EXPECT_TRUE(aligned.GuardsAreUntouched());
  for (const std::int64_t offset : {1, 3}) {
    SCOPED_TRACE(offset);
    Problem unaligned(spec, 6, spatial, offset, param_dtype);
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

// Segments whose rows differ in length, but not in their plan, share a launch.
void CudaStrategiesTest::CheckDifferentLengths(Strategy strategy) {
  const NormSpec spec = InstanceNormSpec(8, DType::kFloat32);
  std::vector<std::unique_ptr<Problem>> problems;
  std::vector<Segment> segments;
  Plan plan;
  for (const std::int64_t spatial : {262144, 262140, 262080, 261001, 262143, 261120}) {
    problems.push_back(std::make_unique<Problem>(spec, 7, spatial));
    segments.push_back(problems.back()->segment);
    Plan own;
    ASSERT_TRUE(MakePlan(spec, spatial, limits_, strategy, &own).ok());
    if (segments.size() > 1) {
      ASSERT_EQ(own, plan) << spatial;
    }
    plan = own;
    problems.back()->PoisonY(nullptr);
  }
  const std::size_t bytes =
      WorkspaceBytes(spec, segments.data(), segments.size(), limits_, strategy);
  const Buffer workspace = Allocate(bytes);
  ASSERT_TRUE(InitWorkspace(workspace.get(), bytes, nullptr).ok());
  LaunchOptions options;
  options.workspace = workspace.get();
  options.workspace_bytes = bytes;
  options.forced = strategy;
  ASSERT_TRUE(
      Normalize(spec, problems[0]->params.view, segments.data(), segments.size(), limits_, options)
          .ok());
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  for (const auto& problem : problems) {
    EXPECT_LE(problem->MaxError(), Tolerance(DType::kFloat32)) << problem->segment.spatial;
  }
}

TEST_F(CudaStrategiesTest, RowsOfDifferentLengthsInOneLaunchAgreeWithReference) {
  CheckDifferentLengths(Strategy::kGrid);
}

TEST_F(CudaStrategiesTest, RowsOfDifferentLengthsInOneClusterLaunchAgreeWithReference) {
  if (limits_.resident_clusters[16] == 0) GTEST_SKIP() << "no clusters of 16 blocks";
  CheckDifferentLengths(Strategy::kCluster);
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

TEST_F(CudaStrategiesTest, GivenStatisticsAgreeWithReferenceInBothLayouts) {
  for (const DType dtype : kTypes) {
    for (const std::int64_t spatial : {1, 2, 7, 49, 1000, 65537}) {
      for (const std::int64_t channels : {1, 7, 64, 1001}) {
        for (const Layout layout : {Layout::kChannelsFirst, Layout::kChannelsLast}) {
          NormSpec spec = BatchNormSpec(channels, dtype);
          spec.layout = layout;
          Problem problem(spec, spatial > 1000 ? 1 : 3, spatial, spatial % 2);
          EXPECT_TRUE(Check(&problem, Strategy::kAuto));
        }
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

TEST_F(CudaStrategiesTest, AChannelsLastSampleHasTheSameBitsInEveryBatch) {
  for (const std::int64_t spatial : {77, 4096, 16384}) {
    NormSpec spec = GroupNormSpec(320, 32, DType::kFloat16);
    spec.layout = Layout::kChannelsLast;
    Problem many(spec, 9, spatial);
    ASSERT_TRUE(Check(&many, Strategy::kAuto));
    const std::vector<char> batch = many.Result();
    const std::size_t sample = many.bytes / 9;
    Problem one(spec, 1, spatial, 1);
    ASSERT_EQ(cudaMemcpy(const_cast<void*>(one.segment.x),
                         static_cast<const char*>(many.segment.x) + 7 * sample, sample,
                         cudaMemcpyDeviceToDevice),
              cudaSuccess);
    ASSERT_TRUE(Check(&one, Strategy::kAuto));
    EXPECT_EQ(one.Result(),
              std::vector<char>(batch.begin() + 7 * sample, batch.begin() + 8 * sample))
        << spatial;
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
