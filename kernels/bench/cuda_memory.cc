#include "kernels/bench/cuda_memory.h"

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/bench/device.h"

namespace normd::norm::bench {

Status ToStatus(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return Status();
  return Status(
      error == cudaErrorMemoryAllocation ? StatusCode::kOutOfMemory : StatusCode::kDeviceError,
      std::string(what) + ": " + cudaGetErrorString(error));
}

Status Allocate(std::size_t bytes, DeviceBuffer* out) {
  void* data = nullptr;
  Status status = ToStatus(cudaMalloc(&data, std::max<std::size_t>(bytes, 1)), "cudaMalloc");
  out->reset(data);
  return status;
}

Status Upload(const std::vector<char>& host, DeviceBuffer* out) {
  Status status = Allocate(host.size(), out);
  if (!status.ok()) return status;
  status = ToStatus(cudaMemcpy(out->get(), host.data(), host.size(), cudaMemcpyHostToDevice),
                    "cudaMemcpy");
  if (!status.ok()) return status;
  // From pageable memory the copy may return early, and other streams do not wait for it.
  return ToStatus(cudaStreamSynchronize(nullptr), "cudaMemcpy");
}

Timer::Timer() {
  cudaEventCreate(&begin_);
  cudaEventCreate(&end_);
}

Timer::~Timer() {
  cudaEventDestroy(begin_);
  cudaEventDestroy(end_);
}

Status Timer::Time(cudaStream_t stream, int calls, std::size_t* next,
                   const std::function<Status(std::size_t)>& call, double* ms) const {
  // The call before the first leaves results in the L2 cache, which the first one evicts. That call
  // is of the same kind, so that no call pays for another kind's results.
  for (int i = -1; i < calls; ++i) {
    if (i == 0) cudaEventRecord(begin_, stream);
    if (Status status = call((*next)++); !status.ok()) return status;
  }
  cudaEventRecord(end_, stream);
  Status status = ToStatus(cudaEventSynchronize(end_), "measurement");
  float elapsed_ms = 0;
  if (status.ok()) {
    status = ToStatus(cudaEventElapsedTime(&elapsed_ms, begin_, end_), "measurement");
  }
  *ms = static_cast<double>(elapsed_ms) / calls;
  return status;
}

Status Timer::TimeReplay(cudaStream_t stream, int calls, std::size_t* next,
                         const std::function<Status(std::size_t)>& call, double* ms) const {
  constexpr int kReplays = 12;
  Status status =
      ToStatus(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  if (!status.ok()) return status;
  for (int i = 0; i < calls && status.ok(); ++i) status = call((*next)++);
  cudaGraph_t graph = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(stream, &graph);
  if (status.ok()) status = ToStatus(ended, "capture");
  cudaGraphExec_t replayed = nullptr;
  if (status.ok()) status = ToStatus(cudaGraphInstantiate(&replayed, graph, 0), "capture");
  std::vector<double> times;
  for (int i = 0; i < kReplays && status.ok(); ++i) {
    std::size_t replay = 0;
    double graph_ms = 0;
    status = Time(
        stream, 1, &replay,
        [&](std::size_t) { return ToStatus(cudaGraphLaunch(replayed, stream), "replay"); },
        &graph_ms);
    times.push_back(graph_ms / calls);
  }
  if (replayed != nullptr) cudaGraphExecDestroy(replayed);
  if (graph != nullptr) cudaGraphDestroy(graph);
  if (status.ok()) *ms = Median(&times);
  return status;
}

}  // namespace normd::norm::bench
