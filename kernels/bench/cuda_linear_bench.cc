// The fused layer on one GPU: every precision, number of samples and tile, with its error against
// float64 and whether its bits are those of the tile that the plan takes.
//
//   linear_bench [FEATURES [SAMPLES...]]        default: 8192, and 1 8 64 128 256 1024
//
// Milliseconds are medians of event timings of one call, calls enqueued one behind the other; the
// copy is that of x, y and the result on the device. Weights of 8192 features are several times the
// L2 cache, so every call reads them from memory.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/bench/cuda_linear_reference.h"
#include "kernels/bench/cuda_reference.h"
#include "kernels/bench/data.h"
#include "kernels/cuda/linear_norm.h"
#include "kernels/cuda/normalize.h"

namespace normd::norm::bench {
namespace {

constexpr int kRepetitions = 25;
constexpr int kCalls = 4;  // Of one repetition.

// Ends the program: nothing after a failure can be measured.
void Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "linear_bench: %s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}
void Check(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "linear_bench: %s\n", status.message().c_str());
  std::exit(1);
}

struct FreeDevice {
  void operator()(void* data) const { cudaFree(data); }
};
using Buffer = std::unique_ptr<void, FreeDevice>;

Buffer Allocate(std::size_t bytes) {
  void* data = nullptr;
  Check(cudaMalloc(&data, std::max<std::size_t>(bytes, 1)), "cudaMalloc");
  return Buffer(data);
}

Buffer Random(DType dtype, std::int64_t elements, double low, double high, std::uint64_t seed) {
  const std::vector<char> host = RandomElements(dtype, kPoolElements, low, high, seed);
  const Buffer pool = Allocate(host.size());
  Check(cudaMemcpy(pool.get(), host.data(), host.size(), cudaMemcpyHostToDevice), "cudaMemcpy");
  const std::size_t bytes = static_cast<std::size_t>(elements) * SizeOf(dtype);
  Buffer buffer = Allocate(bytes);
  Check(FillFromPool(pool.get(), dtype, seed, bytes, buffer.get(), nullptr), "fill");
  Check(cudaDeviceSynchronize(), "fill");
  return buffer;
}

// Median milliseconds of one call.
template <typename Call>
double Measure(const Call& call) {
  cudaEvent_t begin = nullptr, end = nullptr;
  Check(cudaEventCreate(&begin), "cudaEventCreate");
  Check(cudaEventCreate(&end), "cudaEventCreate");
  std::vector<float> times;
  for (int repetition = -3; repetition < kRepetitions; ++repetition) {
    Check(cudaEventRecord(begin), "cudaEventRecord");
    for (int i = 0; i < kCalls; ++i) call();
    Check(cudaEventRecord(end), "cudaEventRecord");
    Check(cudaEventSynchronize(end), "measurement");
    float ms = 0;
    Check(cudaEventElapsedTime(&ms, begin, end), "measurement");
    if (repetition >= 0) times.push_back(ms / kCalls);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::nth_element(times.begin(), times.begin() + kRepetitions / 2, times.end());
  return times[kRepetitions / 2];
}

// One precision's weights, and the tensors of the largest batch.
class Layer {
 public:
  Layer(std::int64_t features, std::int64_t most_samples, DType dtype, Precision precision,
        const cuda::DeviceLimits& limits)
      : limits_(limits) {
    spec_.in_features = spec_.out_features = features;
    spec_.dtype = dtype;
    spec_.precision = precision;
    spec_.epilogue.add = spec_.epilogue.multiply = true;
    const double scale = 1 / std::sqrt(static_cast<double>(features));
    weight_ = Random(DType::kFloat32, features * features, -scale, scale, 1);
    bias_ = Random(DType::kFloat32, features, -scale, scale, 2);
    x_ = Random(dtype, most_samples * features, 0, 1, 3);
    y_ = Random(dtype, most_samples * features, 0, 1, 4);
    out_ = Allocate(static_cast<std::size_t>(most_samples * features) * SizeOf(dtype));
    params_.weight.data = weight_.get();
    params_.bias.data = bias_.get();
    const std::size_t bytes = cuda::LinearWeightBytes(spec_, limits);
    prepared_ = Allocate(bytes);
    Check(cuda::PrepareLinearWeights(spec_, params_, limits, prepared_.get(), bytes, nullptr));
  }

  // Prints the lines of a number of samples.
  void Report(std::int64_t samples) const {
    const std::size_t bytes =
        static_cast<std::size_t>(samples * spec_.out_features) * SizeOf(spec_.dtype);
    const Buffer copies = Allocate(bytes);
    const double copy_ms = Measure([&] {
      for (const Buffer* from : {&x_, &y_, &out_}) {
        Check(cudaMemcpyAsync(copies.get(), from->get(), bytes, cudaMemcpyDeviceToDevice), "copy");
      }
    });
    std::vector<char> automatic;
    std::string seen;
    for (cuda::LinearTile tile : cuda::kLinearTiles) {
      // Tiles that a plan has not are another under their name.
      const std::string plan =
          cuda::Describe(cuda::MakeLinearPlan(spec_, limits_, samples, tile)) + "\n";
      if (tile != cuda::LinearTile::kAuto && seen.find(plan) != std::string::npos) continue;
      if (tile != cuda::LinearTile::kAuto) seen += plan;
      ReportTile(samples, tile, bytes, copy_ms, &automatic);
    }
  }

 private:
  void ReportTile(std::int64_t samples, cuda::LinearTile tile, std::size_t bytes, double copy_ms,
                  std::vector<char>* automatic) const {
    cuda::LinearLaunchOptions options;
    options.forced = tile;
    options.workspace_bytes = cuda::LinearWorkspaceBytes(spec_, samples, limits_, options.forced);
    const Buffer workspace = Allocate(options.workspace_bytes);
    options.workspace = workspace.get();
    const LinearNormSegment segment = {x_.get(), y_.get(), out_.get(), samples};
    const auto run = [&] {
      Check(cuda::LinearNorm(spec_, prepared_.get(), &segment, 1, limits_, options));
    };
    // All ones is a NaN in every type: an element that is not written shows in the error.
    Check(cudaMemset(out_.get(), 0xff, bytes), "cudaMemset");
    run();
    LinearError error;
    Check(LinearErrorOnDevice(spec_, params_, segment, nullptr, &error), "check");
    std::vector<char> bits(bytes);
    Check(cudaMemcpy(bits.data(), out_.get(), bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
    if (automatic->empty()) *automatic = bits;
    const double ms = Measure(run);
    const double operations = 2.0 * static_cast<double>(samples) *
                              static_cast<double>(spec_.in_features) *
                              static_cast<double>(spec_.out_features);
    std::printf("%-14s %-8s %5lld %-9s %9.4f %9.4f %8.1f  %8.1e %8.1e  %s\n", Name(spec_.precision),
                Name(spec_.dtype), static_cast<long long>(samples), cuda::Name(tile), ms, copy_ms,
                operations / ms / 1e9, error.relative, error.max,
                bits == *automatic ? "same" : "DIFFER");
    std::fflush(stdout);
  }

  const cuda::DeviceLimits& limits_;
  LinearNormSpec spec_;
  LinearNormParams params_;
  Buffer weight_, bias_, x_, y_, out_, prepared_;
};

void Run(std::int64_t features, const std::vector<std::int64_t>& samples) {
  cuda::DeviceLimits limits;
  Check(cuda::QueryDeviceLimits(0, &limits));
  cudaDeviceProp properties;
  Check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  std::printf("%s, %lld -> %lld\n", properties.name, static_cast<long long>(features),
              static_cast<long long>(features));
  std::printf("%-14s %-8s %5s %-9s %9s %9s %8s  %8s %8s  bits\n", "precision", "dtype", "B", "tile",
              "ms", "copy ms", "TFLOP/s", "relative", "max");
  const std::int64_t most = *std::max_element(samples.begin(), samples.end());
  for (auto [precision, dtype] : {std::pair(Precision::kFloat32, DType::kFloat32),
                                  std::pair(Precision::kFloat32, DType::kFloat16),
                                  std::pair(Precision::kTf32, DType::kFloat32),
                                  std::pair(Precision::kBFloat16, DType::kBFloat16),
                                  std::pair(Precision::kFloat32Strict, DType::kFloat32)}) {
    const Layer layer(features, most, dtype, precision, limits);
    for (const std::int64_t count : samples) layer.Report(count);
  }
}

}  // namespace
}  // namespace normd::norm::bench

int main(int argc, char** argv) {
  std::vector<std::int64_t> numbers;
  for (int i = 1; i < argc; ++i) {
    numbers.push_back(std::strtoll(argv[i], nullptr, 10));
    if (numbers.back() > 0) continue;
    std::fprintf(stderr, "linear_bench: \"%s\", wanted [FEATURES [SAMPLES...]]\n", argv[i]);
    return 2;
  }
  const std::int64_t features = numbers.empty() ? 8192 : numbers[0];
  std::vector<std::int64_t> samples = {1, 8, 64, 128, 256, 1024};
  if (numbers.size() > 1) samples.assign(numbers.begin() + 1, numbers.end());
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::fprintf(stderr, "linear_bench: no CUDA device\n");
    return 2;
  }
  try {
    normd::norm::bench::Run(features, samples);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "linear_bench: %s\n", error.what());
    return 1;
  }
}
