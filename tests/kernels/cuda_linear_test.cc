// What only a GPU can show of the fused layer: the same bits in every tile and on every launch, and
// the seed's size.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/bench/cuda_linear_reference.h"
#include "kernels/bench/cuda_reference.h"
#include "kernels/bench/data.h"
#include "kernels/cuda/linear_norm.h"
#include "kernels/cuda/normalize.h"
#include "tests/kernels/cuda_memory.h"

namespace normd::norm::cuda {
namespace {

constexpr std::uint64_t kSeed = 20261121;

// `elements` values, uniform in [low, high).
Buffer Random(DType dtype, std::int64_t elements, double low, double high, std::uint64_t seed) {
  const std::vector<char> host =
      bench::RandomElements(dtype, bench::kPoolElements, low, high, seed);
  const Buffer pool = Allocate(host.size());
  EXPECT_EQ(cudaMemcpy(pool.get(), host.data(), host.size(), cudaMemcpyHostToDevice), cudaSuccess);
  const std::size_t bytes = static_cast<std::size_t>(elements) * SizeOf(dtype);
  Buffer buffer = Allocate(bytes);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(bench::FillFromPool(pool.get(), dtype, seed, bytes, buffer.get(), nullptr),
            cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  return buffer;
}

// A layer and a batch of one segment in device memory; weights of order 1 / sqrt(I).
struct Problem {
  Problem(const LinearNormSpec& problem_spec, std::int64_t samples, const DeviceLimits& limits)
      : spec(problem_spec),
        out_bytes(static_cast<std::size_t>(samples * spec.out_features) * SizeOf(spec.dtype)) {
    spec.epilogue.add = spec.epilogue.multiply = true;
    const double scale = 1 / std::sqrt(static_cast<double>(spec.in_features));
    weight = Random(DType::kFloat32, spec.in_features * spec.out_features, -scale, scale, kSeed);
    bias = Random(DType::kFloat32, spec.out_features, -scale, scale, kSeed + 1);
    x = Random(spec.dtype, samples * spec.in_features, 0, 1, kSeed + 2);
    y = Random(spec.dtype, samples * spec.out_features, 0, 1, kSeed + 3);
    out = Allocate(out_bytes);
    segment = {x.get(), y.get(), out.get(), samples};
    params.weight.data = weight.get();
    params.bias.data = bias.get();
    const std::size_t bytes = LinearWeightBytes(spec, limits);
    prepared = Allocate(bytes);
    const Status status =
        PrepareLinearWeights(spec, params, limits, prepared.get(), bytes, nullptr);
    EXPECT_TRUE(status.ok()) << status.message();
  }

  // Computes into poisoned memory, with a workspace of junk.
  Status Run(const DeviceLimits& limits, LinearTile tile) { return Run(limits, tile, {segment}); }
  Status Run(const DeviceLimits& limits, LinearTile tile,
             const std::vector<LinearNormSegment>& segments) {
    LinearLaunchOptions options;
    options.forced = tile;
    options.workspace_bytes = LinearWorkspaceBytes(spec, segment.samples, limits, tile);
    const Buffer workspace = Allocate(options.workspace_bytes);
    options.workspace = workspace.get();
    EXPECT_EQ(cudaMemset(workspace.get(), 0xff, options.workspace_bytes), cudaSuccess);
    EXPECT_EQ(cudaMemset(out.get(), 0xff, out_bytes), cudaSuccess);
    const Status status =
        LinearNorm(spec, prepared.get(), segments.data(), segments.size(), limits, options);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    return status;
  }

  // Samples [begin, begin + count) of the batch.
  LinearNormSegment Part(std::int64_t begin, std::int64_t count) const {
    const auto element = static_cast<std::int64_t>(SizeOf(spec.dtype));
    const std::int64_t x_bytes = begin * spec.in_features * element;
    const std::int64_t y_bytes = begin * spec.out_features * element;
    return {static_cast<const char*>(segment.x) + x_bytes,
            static_cast<const char*>(segment.y) + y_bytes,
            static_cast<char*>(segment.out) + y_bytes, count};
  }

  std::vector<char> Out() const {
    std::vector<char> host(out_bytes);
    EXPECT_EQ(cudaMemcpy(host.data(), out.get(), out_bytes, cudaMemcpyDeviceToHost), cudaSuccess);
    return host;
  }

  LinearNormSpec spec;
  std::size_t out_bytes;
  Buffer weight, bias, x, y, out, prepared;
  LinearNormSegment segment;
  LinearNormParams params;
};

class CudaLinearTest : public ::testing::TestWithParam<std::tuple<DType, Precision>> {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
      GTEST_SKIP() << "no CUDA device";
    }
    const Status status = QueryDeviceLimits(0, &limits_);
    ASSERT_TRUE(status.ok()) << status.message();
  }

  LinearNormSpec Spec(std::int64_t in, std::int64_t out) const {
    LinearNormSpec spec;
    spec.in_features = in;
    spec.out_features = out;
    spec.dtype = std::get<0>(GetParam());
    spec.precision = std::get<1>(GetParam());
    return spec;
  }

  // What rounding the operands and the results leaves, with room.
  static double RelativeLimit() {
    const auto [dtype, precision] = GetParam();
    if (precision == Precision::kBFloat16 || dtype == DType::kBFloat16) return 8e-3;
    if (precision == Precision::kTf32 || dtype == DType::kFloat16) return 1e-3;
    return 3e-6;
  }

  DeviceLimits limits_;
};

TEST_P(CudaLinearTest, GivesTheSameBitsInEveryTile) {
  for (const auto& [in, out] : {std::pair{64, 64}, {200, 300}, {1000, 257}, {2048, 1100}}) {
    for (const std::int64_t samples : {1, 2, 7, 32, 33, 64, 65, 128, 129, 300, 1000, 1025}) {
      Problem problem(Spec(in, out), samples, limits_);
      ASSERT_TRUE(problem.Run(limits_, LinearTile::kAuto).ok());
      const std::vector<char> automatic = problem.Out();
      for (const LinearTile tile : kLinearTiles) {
        ASSERT_TRUE(problem.Run(limits_, tile).ok());
        ASSERT_EQ(problem.Out(), automatic)
            << in << " -> " << out << ", samples " << samples << ", tile " << Name(tile);
      }
    }
  }
}

// Rows of x that lie together may be read in place; others never are.
TEST_P(CudaLinearTest, GivesTheSameBitsWhereverTheSegmentsLie) {
  for (const std::int64_t samples : {3, 70, 300, 1030}) {
    for (const LinearTile tile : {LinearTile::kAuto, LinearTile::kWide}) {
      Problem problem(Spec(264, 300), samples, limits_);
      ASSERT_TRUE(problem.Run(limits_, tile).ok());
      const std::vector<char> together = problem.Out();
      const std::int64_t cut = samples / 3;
      const LinearNormSegment first = problem.Part(0, cut);
      const LinearNormSegment second = problem.Part(cut, samples - cut);
      ASSERT_TRUE(problem.Run(limits_, tile, {first, second}).ok());
      EXPECT_EQ(problem.Out(), together) << samples << " samples, neighbours";
      ASSERT_TRUE(problem.Run(limits_, tile, {second, first}).ok());
      EXPECT_EQ(problem.Out(), together) << samples << " samples, the other way round";
    }
  }
}

TEST_P(CudaLinearTest, GivesTheSameBitsOnEveryLaunch) {
  Problem problem(Spec(1000, 1500), 300, limits_);
  ASSERT_TRUE(problem.Run(limits_, LinearTile::kAuto).ok());
  const std::vector<char> first = problem.Out();
  for (int launch = 1; launch < 100; ++launch) {
    ASSERT_TRUE(problem.Run(limits_, LinearTile::kAuto).ok());
    ASSERT_EQ(problem.Out(), first) << launch;
  }
}

// The seed's layer. Errors of the results in units of theirs, which are of order 1: kFloat32's is
// what PyTorch's float32 shows on these data.
TEST_P(CudaLinearTest, AgreesWithFloat64AtTheSeedsSize) {
  Problem problem(Spec(8192, 8192), 1024, limits_);
  ASSERT_TRUE(problem.Run(limits_, LinearTile::kAuto).ok());
  bench::LinearError error;
  ASSERT_EQ(
      bench::LinearErrorOnDevice(problem.spec, problem.params, problem.segment, nullptr, &error),
      cudaSuccess);
  EXPECT_EQ(error.samples, 16);
  EXPECT_LT(error.relative, RelativeLimit());
  EXPECT_LT(error.max, 20 * RelativeLimit());
}

INSTANTIATE_TEST_SUITE_P(
    All, CudaLinearTest,
    ::testing::Combine(::testing::Values(DType::kFloat32, DType::kFloat16, DType::kBFloat16),
                       ::testing::Values(Precision::kFloat32, Precision::kTf32,
                                         Precision::kBFloat16, Precision::kFloat32Strict)),
    [](const auto& test) {
      return std::string(Name(std::get<0>(test.param))) + "_" + Name(std::get<1>(test.param));
    });

}  // namespace
}  // namespace normd::norm::cuda
