// Norms on a GPU with a strategy forced, every element checked in float64 on the device.

#ifndef NORMD_TESTS_KERNELS_CUDA_STRATEGIES_FIXTURE_H_
#define NORMD_TESTS_KERNELS_CUDA_STRATEGIES_FIXTURE_H_

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/bench/cuda_reference.h"
#include "kernels/bench/data.h"
#include "kernels/cuda/normalize.h"
#include "kernels/reference.h"
#include "tests/kernels/cuda_memory.h"

namespace normd::norm::cuda {

inline constexpr std::uint64_t kSeed = 20261120;
inline constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat64, DType::kFloat16,
                                   DType::kBFloat16};

struct Parameters {
  Parameters(const NormSpec& spec, DType dtype) {
    if (spec.statistics > Statistics::kGiven) return;  // Norms have none.
    bench::Case c;
    c.spec = spec;
    const bench::HostParams host(c, dtype, kSeed);
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

  // Replaces an element of each row that lies together by one that outweighs the row's others, as
  // far as the type allows: the first, the last, or at a distance that is drawn by the row.
  void PlantOutliers() {
    const std::int64_t length = RowLength(spec, segment.spatial);
    const auto rows = static_cast<std::int64_t>(bytes / SizeOf(spec.dtype)) / length;
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t at = row == 0 ? 0 : row == 1 ? length - 1 : length * 5 / 8 * row % length;
      char outlier[8];
      StoreElement(spec.dtype, outlier, 0, row % 2 == 0 ? 60000 : -60000);
      const std::size_t size = SizeOf(spec.dtype);
      char* const to = static_cast<char*>(const_cast<void*>(segment.x)) +
                       static_cast<std::size_t>(row * length + at) * size;
      EXPECT_EQ(cudaMemcpy(to, outlier, size, cudaMemcpyHostToDevice), cudaSuccess);
    }
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

inline double Tolerance(DType dtype) {
  switch (dtype) {
    case DType::kFloat64: return 1e-12;
    case DType::kFloat32: return 3e-6;
    case DType::kFloat16: return 1e-3;
    case DType::kBFloat16: return 8e-3;
    default: return 0;
  }
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
    const NormSpec& spec = problem->spec;
    const PresentParams params = PresentParams::Of(problem->params.view, spec.dtype);
    if (!MakePlan(spec, problem->segment.spatial, params, limits_, forced, &plan).ok()) {
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

  DeviceLimits limits_;
};

}  // namespace normd::norm::cuda

#endif  // NORMD_TESTS_KERNELS_CUDA_STRATEGIES_FIXTURE_H_
