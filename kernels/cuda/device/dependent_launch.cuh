// A kernel that begins while its predecessor in the stream still runs (programmatic dependent
// launch, compute capability 9.0). Elsewhere kernels run one after another and both calls do
// nothing.

#ifndef NORMD_KERNELS_CUDA_DEVICE_DEPENDENT_LAUNCH_CUH_
#define NORMD_KERNELS_CUDA_DEVICE_DEPENDENT_LAUNCH_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/strategy.h"

namespace normd::norm::cuda {

// The next kernel may begin once every block has called this or has ended.
__device__ inline void LetNextKernelBegin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Waits until the previous kernel has ended and its writes are visible. Every thread that uses them
// calls it. Writes of older kernels are visible without it if the previous kernel was not allowed
// to overlap them.
__device__ inline void AwaitPreviousKernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Calls LetNextKernelBegin where it pays, after AwaitPreviousKernel. It pays in a grid that leaves
// most of the device idle: the successor's blocks start while this grid's wait for their rows. With
// kManyWaves it also pays in a grid that fills the device several times, whose last blocks leave
// room. In between, the next kernel's blocks would be spread unevenly over the multiprocessors that
// happen to have room (0.84 of the speed of a tensor of 6 MB).
template <bool kManyWaves>
__device__ inline void LetNextKernelBeginEarly() {
  constexpr unsigned kFewThreads = 1 << 16;
  constexpr unsigned kManyThreads = 1 << 19;
  const unsigned threads = gridDim.x * blockDim.x;
  const bool many = kManyWaves && (threads >= kManyThreads || gridDim.x >= kManyThreads);
  if (threads <= kFewThreads || many) LetNextKernelBegin();
}

// The launch attribute that allows a kernel to overlap its predecessor.
inline cudaLaunchAttribute OverlapPrevious(bool allowed) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = allowed ? 1 : 0;
  return attribute;
}

struct LaunchShape {
  unsigned blocks = 0;
  dim3 threads;
  std::size_t shared_bytes = 0;  // Dynamic; a kernel asks for more than 48 KiB once.
};

// Launches a kernel which calls AwaitPreviousKernel before it touches global memory, so that its
// launch and its first instructions overlap the end of its predecessor. This saves 0.3 us of a
// small tensor's 2, and as much again if the predecessor calls LetNextKernelBeginEarly.
template <typename... Params, typename... Args>
cudaError_t LaunchOverlapping(const DeviceLimits& limits, cudaStream_t stream,
                              const LaunchShape& shape, void (*kernel)(Params...),
                              const Args&... args) {
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.blocks;
  config.blockDim = shape.threads;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute attribute = OverlapPrevious(true);
  config.attrs = &attribute;
  config.numAttrs = limits.compute_capability >= 90 ? 1 : 0;
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, args...);
  // The error is returned here; this clears it.
  if (error != cudaSuccess) (void)cudaGetLastError();
  return error;
}
template <typename... Params, typename... Args>
cudaError_t LaunchOverlapping(const DeviceLimits& limits, cudaStream_t stream,
                              void (*kernel)(Params...), unsigned blocks, unsigned threads,
                              const Args&... args) {
  return LaunchOverlapping(limits, stream, LaunchShape{blocks, dim3(threads)}, kernel, args...);
}

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_DEVICE_DEPENDENT_LAUNCH_CUH_
