#include "tests/bench/small_batches.h"

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "kernels/cuda/normalize.h"
#include "kernels/norm.h"
#include "tests/bench/measure.h"

namespace normd {
namespace {

constexpr std::int64_t kChannels = 64;
constexpr std::size_t kMostBytes = std::size_t{8} << 20;
constexpr int kBatches = 300;

void Check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "small batches: %s\n", cudaGetErrorString(error));
  std::exit(1);
}

void Check(const norm::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "small batches: %s\n", status.message().c_str());
  std::exit(1);
}

class Paths {
 public:
  Paths() {
    Check(norm::cuda::QueryDeviceLimits(0, &limits_));
    Check(cudaSetDevice(0));
    Check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    Check(cudaEventCreateWithFlags(&done_, cudaEventDisableTiming));
    Check(cudaHostAlloc(&pinned_, kMostBytes, cudaHostAllocPortable));
    Check(cudaMalloc(&device_, kMostBytes));
    Check(cudaMalloc(&workspace_, kWorkspaceBytes));
    Check(norm::cuda::InitWorkspace(workspace_, kWorkspaceBytes, stream_));
    std::memset(pinned_, 0, kMostBytes);
  }
  ~Paths() {
    Check(cudaStreamSynchronize(stream_));
    Check(cudaFree(workspace_));
    Check(cudaFree(device_));
    Check(cudaFreeHost(pinned_));
    Check(cudaEventDestroy(done_));
    Check(cudaStreamDestroy(stream_));
  }
  Paths(const Paths&) = delete;
  Paths& operator=(const Paths&) = delete;

  void EnqueueMapped(std::size_t bytes) { Launch(pinned_, bytes); }
  void EnqueueCopies(std::size_t bytes) {
    Check(cudaMemcpyAsync(device_, pinned_, bytes, cudaMemcpyHostToDevice, stream_));
    Launch(device_, bytes);
    Check(cudaMemcpyAsync(pinned_, device_, bytes, cudaMemcpyDeviceToHost, stream_));
  }

  // The median microseconds of what `enqueue` enqueues, until it is done.
  double Time(absl::FunctionRef<void()> enqueue) {
    std::vector<double> times;
    for (int i = 0; i < kBatches; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      enqueue();
      Check(cudaEventRecord(done_, stream_));
      cudaError_t state = cudaErrorNotReady;
      while (state == cudaErrorNotReady) state = cudaEventQuery(done_);
      Check(state);
      const std::chrono::duration<double, std::micro> took =
          std::chrono::steady_clock::now() - begin;
      times.push_back(took.count());
    }
    return Median(std::move(times));
  }

  // The same of its replay.
  double TimeGraph(absl::FunctionRef<void()> enqueue) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t replay = nullptr;
    Check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    enqueue();
    Check(cudaStreamEndCapture(stream_, &graph));
    Check(cudaGraphInstantiate(&replay, graph, 0));
    const double time = Time([&] { Check(cudaGraphLaunch(replay, stream_)); });
    Check(cudaGraphExecDestroy(replay));
    Check(cudaGraphDestroy(graph));
    return time;
  }

 private:
  static constexpr std::size_t kWorkspaceBytes = norm::cuda::kWorkspaceBase + kMostBytes / 8;

  void Launch(void* rows, std::size_t bytes) {
    const norm::NormSpec spec = norm::InstanceNormSpec(kChannels, norm::DType::kFloat32);
    const auto spatial = static_cast<std::int64_t>(bytes / sizeof(float)) / kChannels;
    const norm::Segment segment{rows, rows, 1, spatial};
    norm::cuda::LaunchOptions options;
    options.stream = stream_;
    options.workspace = workspace_;
    options.workspace_bytes = kWorkspaceBytes;
    Check(norm::cuda::Normalize(spec, norm::NormParams(), &segment, 1, limits_, options));
  }

  norm::cuda::DeviceLimits limits_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t done_ = nullptr;
  void* pinned_ = nullptr;
  void* device_ = nullptr;
  void* workspace_ = nullptr;
};

}  // namespace

void PrintSmallBatches() {
  Paths paths;
  std::printf("one small batch at a time, medians in us:\n%10s %12s %12s %12s %12s\n", "bytes",
              "mapped", "copies", "graph", "mapped graph");
  for (std::size_t bytes = 1 << 10; bytes <= kMostBytes; bytes *= bytes < (1 << 20) ? 8 : 2) {
    const auto mapped = [&] { paths.EnqueueMapped(bytes); };
    const auto copies = [&] { paths.EnqueueCopies(bytes); };
    std::printf("%10zu %12.1f %12.1f %12.1f %12.1f\n", bytes, paths.Time(mapped),
                paths.Time(copies), paths.TimeGraph(copies), paths.TimeGraph(mapped));
  }
}

}  // namespace normd
